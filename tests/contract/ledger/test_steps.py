"""What follows the last shard, in every store: each step has one holder, and a dead one is succeeded."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from shardmill.ledger import Ledger
from shardmill.store import open_store
from tests.support.ledgers import a_plan

MERGE = "merge:/data/out.parquet"


@pytest.fixture
def now() -> list[float]:
    return [1_000.0]


@pytest.fixture
def ledger(place: str, now: list[float]) -> Ledger:
    made = Ledger(open_store(f"{place}/run"), clock=lambda: now[0])
    made.create(a_plan(shards=3))
    return made


def test_a_step_is_held_by_one_until_it_is_done(ledger: Ledger) -> None:
    steps = ledger.steps
    assert steps.read() == []
    assert steps.take(MERGE, "a", 60.0).worker == "a"
    assert steps.take(MERGE, "b", 60.0).worker == "a"
    steps.finish(MERGE, "b", {"rows": 1})
    steps.release(MERGE, "b")
    assert steps.take(MERGE, "b", 60.0).worker == "a"
    steps.release(MERGE, "a")
    assert steps.take(MERGE, "b", 60.0).worker == "b"
    steps.finish(MERGE, "b", {"rows": 2})
    done = steps.take(MERGE, "a", 60.0)
    assert (done.state, done.worker, done.result, done.deaths) == ("done", "b", {"rows": 2}, 0)
    assert steps.read() == [done]
    assert steps.take("verify", "a", 60.0).worker == "a"
    steps.forget(MERGE)
    assert steps.take(MERGE, "a", 60.0).state == "taken"


def test_a_step_whose_holder_is_gone_is_taken_over_and_fails_after_three(ledger: Ledger, now: list[float]) -> None:
    steps = ledger.steps
    steps.take(MERGE, "a", 60.0)
    now[0] += 50
    steps.renew(MERGE, "a", 60.0)
    now[0] += 50
    assert steps.take(MERGE, "b", 60.0).worker == "a"
    now[0] += 11
    taken = steps.take(MERGE, "b", 60.0)
    assert (taken.worker, taken.deaths) == ("b", 1)
    steps.finish(MERGE, "a", {"late": True})
    assert steps.find(MERGE) == taken
    now[0] += 61
    assert steps.take(MERGE, "c", 60.0).deaths == 2
    now[0] += 61
    failed = steps.take(MERGE, "d", 60.0)
    assert (failed.state, failed.error) == ("failed", "3 processes in a row died at it.")


def test_a_holder_on_this_machine_that_has_died_is_not_waited_for(ledger: Ledger) -> None:
    steps = ledger.steps
    taken = steps.take(MERGE, "a", 600.0)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    steps._change(replace(taken, pid=ended.pid), steps._read(MERGE)[1])
    assert steps.take(MERGE, "b", 600.0).worker == "b"


def test_steps_belong_to_their_generation(ledger: Ledger) -> None:
    ledger.steps.take(MERGE, "a", 600.0)
    ledger.start_over(a_plan(shards=3))
    assert ledger.steps.read() == []
    assert ledger.steps.take(MERGE, "b", 600.0).worker == "b"
