"""The durable state of a run, in every store."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardmill.core.errors import Preempted, WorkerFailed
from shardmill.ledger import Ledger
from tests.support.ledgers import a_plan


@pytest.fixture
def ledger(place: str) -> Ledger:
    ledger = Ledger(place, lambda: 7.0)
    ledger.create(a_plan())
    return ledger


def test_the_state_is_in_the_folder(ledger: Ledger) -> None:
    generation = ledger.plan().generation
    found = json.loads(ledger.store.get("state.json"))
    assert found.items() >= {"generation": generation, "state": "wanted", "at": 7.0, "cause": None}.items()
    ledger.state.fail("worker-1", "The disk is full.", "Free some space.")
    found = json.loads(ledger.store.get("state.json"))
    assert found["cause"] == {"message": "The disk is full.", "hint": "Free some space."}
    assert (found["state"], found["by"]) == ("failed", "worker-1")


def test_a_run_of_an_earlier_version_is_wanted(ledger: Ledger, place: str) -> None:
    ledger.store.delete("state.json")
    late = Ledger(place)
    late.plan()
    assert late.state.is_wanted()
    late.state.stop("anna@desk")
    assert not late.state.is_wanted()


def test_who_may_change_what(ledger: Ledger) -> None:
    state = ledger.state
    assert state.stop("anna").state == "stopped"
    assert state.stop("ben").by == "anna"
    assert state.fail("worker-1", "too late").state == "stopped"
    with pytest.raises(Preempted, match=r"stopped by anna.*\n.*shardmill resume"):
        raise state.refusal()  # type: ignore[misc]
    assert state.want("anna").state == "wanted"
    assert state.refusal() is None
    assert state.fail("worker-1", "The disk is full.").state == "failed"
    assert state.stop("anna").state == "failed"
    with pytest.raises(WorkerFailed, match=r"The disk is full.*\n.*shardmill resume"):
        raise state.refusal()  # type: ignore[misc]
    assert state.finish("worker-2").state == "done"
    assert state.stop("anna").state == state.fail("worker-1", "too late").state == "done"
    assert state.is_wanted(), "a worker that is just ending is not disturbed"


def test_a_run_that_a_resume_cannot_cure_does_not_offer_one(ledger: Ledger, place: str) -> None:
    ledger.state.fail("worker-1", "No task is called 'x'.", "Available: embed.", resumes=False)
    late = Ledger(place)
    late.plan()
    refusal = late.state.refusal()
    assert refusal is not None
    assert (refusal.hint, refusal.resumes) == ("Available: embed.", False)
    ledger.state.want("anna")
    ledger.state.fail("worker-1", "The task gave no rows.", resumes=False)
    refusal = late.state.refusal()
    assert refusal is not None
    assert refusal.hint == "Mend the cause, then start over with --fresh."


def test_one_of_many_racing_causes_wins(ledger: Ledger, place: str) -> None:
    def fail(number: int) -> str:
        one = Ledger(place)
        one.plan()
        return one.state.fail(f"w{number}", f"cause {number}").cause

    with ThreadPoolExecutor(6) as pool:
        assert len({*pool.map(fail, range(6))}) == 1


def test_what_is_left_of_an_earlier_run_changes_nothing(ledger: Ledger, place: str) -> None:
    home = Ledger(place)
    home.plan()
    home.start_over(a_plan(shards=5))
    for changed in (ledger.state.want("old"), ledger.state.stop("old"), ledger.state.finish("old")):
        assert (changed.generation, changed.state) == (home.plan().generation, "wanted")
    assert home.state.is_wanted()
    assert not ledger.state.is_wanted()


def test_a_state_that_outlived_its_run_is_replaced(ledger: Ledger, place: str) -> None:
    left = ledger.store.get("state.json")
    ledger.start_over(a_plan(shards=5))
    ledger.store.put("state.json", left)
    ledger.state.want("parent")
    assert ledger.state.is_wanted()
    assert ledger.state.look().generation == ledger.plan().generation
