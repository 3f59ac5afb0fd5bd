"""Whether workers die one after another without progress, from the records they left."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from shardmill.ledger import Ledger, Suspects, find_crash_loop, read_search
from tests.support.ledgers import a_plan

NOW = 10_000.0
ALL = [0, [1 << 62, 0]]


@pytest.fixture
def ledger() -> Ledger:
    """A run that was last wanted at 1000."""
    now = [1000.0]
    ledger = Ledger(f"memory://{uuid.uuid4().hex}", lambda: now[0])
    ledger.create(a_plan())
    now[0] = NOW
    return ledger


def beat(ledger: Ledger, name: str, started: float, at: float, **said: Any) -> None:
    record = {"state": "working", "commits": 0, "host": "elsewhere", "pid": 1, "error": None, "search": ALL}
    ledger.workers.beat(name, {**record, "started": started, **said, "at": at})


def die_in_turn(ledger: Ledger, count: int, first: float = 2000.0) -> None:
    for i in range(count):
        beat(ledger, f"dead-{i}", first + 100 * i, first + 100 * i + 50)


def is_loop(ledger: Ledger, forgiven: int = 3) -> bool:
    return find_crash_loop(ledger, "me", forgiven, read_search(ledger)) is not None


def test_deaths_in_turn_are_counted(ledger: Ledger) -> None:
    die_in_turn(ledger, 3)
    assert not is_loop(ledger)
    die_in_turn(ledger, 4)
    assert is_loop(ledger)
    assert not is_loop(ledger, forgiven=4)


def test_many_deaths_at_once_are_one(ledger: Ledger) -> None:
    for i in range(400):
        beat(ledger, f"dead-{i}", 2000.0 + i / 100, 2100.0)
    assert not is_loop(ledger)


def test_a_large_crowd_that_dies_in_turn_is_seen_by_a_sample(ledger: Ledger) -> None:
    for i in range(400):
        start = 2000.0 + 100 * (i // 80)
        beat(ledger, f"dead-{i}", start, start + 50)
    assert is_loop(ledger)


def test_deaths_before_the_run_was_last_wanted_are_forgiven(ledger: Ledger) -> None:
    die_in_turn(ledger, 9)
    ledger.state.want("anna@desk")
    assert not is_loop(ledger)


def test_a_commit_of_anybody_begins_the_count_again(ledger: Ledger) -> None:
    die_in_turn(ledger, 9)
    beat(ledger, "good", 1500.0, 2700.0, commits=1)
    assert not is_loop(ledger)


@pytest.mark.parametrize("said", [{"state": "stopped"}, {"state": "done"}, {"told_to_stop": True}])
def test_who_was_told_to_stop_did_not_die(ledger: Ledger, said: dict[str, Any]) -> None:
    for i in range(9):
        beat(ledger, f"dead-{i}", 2000.0 + 100 * i, 2050.0 + 100 * i, **said)
    assert not is_loop(ledger)


def test_a_living_worker_that_outlived_the_dead_is_a_hope(ledger: Ledger) -> None:
    die_in_turn(ledger, 9)
    beat(ledger, "young", NOW - 40.0, NOW - 1.0, state="loading")
    assert is_loop(ledger)
    beat(ledger, "old", NOW - 400.0, NOW - 1.0)
    assert not is_loop(ledger)


def test_a_search_that_narrows_is_progress(ledger: Ledger) -> None:
    for i, rows in enumerate((64, 32, 16, 8, 4, 2, 1)):
        beat(ledger, f"dead-{i}", 2000.0 + 100 * i, 2050.0 + 100 * i, search=[0, [rows, 0]])
    ledger.suspects.put(0, Suspects((5,), strikes=1))
    assert not is_loop(ledger)
    for i in range(7, 12):
        beat(ledger, f"dead-{i}", 2000.0 + 100 * i, 2050.0 + 100 * i, search=[0, [1, -1]])
    assert is_loop(ledger)


def test_the_cause_names_the_last_worker_and_what_it_said(ledger: Ledger) -> None:
    die_in_turn(ledger, 4)
    beat(ledger, "last", 3000.0, 3001.0, state="failed", error="CUDA error: no kernel image")
    found = find_crash_loop(ledger, "me", 3, read_search(ledger))
    assert found is not None
    assert found.message.startswith("5 workers died one after another without progress; the last, last: CUDA error")
