"""Who works on one item together, in every store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from shardmill.ledger import Ledger
from tests.support.ledgers import a_plan, make_commit


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(place: str, clock: Clock) -> Ledger:
    ledger = Ledger(place, clock)
    ledger.create(a_plan())
    return ledger


def test_workers_are_there_until_they_say_so_no_more(ledger: Ledger, clock: Clock) -> None:
    ledger.gangs.announce(1, "late", clock.now + 1, 10.0)
    ledger.gangs.announce(1, "early.x", clock.now, 5.0)
    ledger.gangs.announce(2, "elsewhere", clock.now, 10.0)
    assert ledger.gangs.present(1) == ["early.x", "late"]
    clock.now += 6
    assert ledger.gangs.present(1) == ["late"]
    ledger.gangs.withdraw(1, "late")
    assert ledger.gangs.present(1) == []


def test_each_group_has_a_higher_generation(ledger: Ledger) -> None:
    gangs = ledger.gangs
    assert gangs.find(1) is None
    gangs.call(1, 0, "a")
    assert [gang.members for gang in gangs.list_open()] == [()]
    first = gangs.form(1, "a", "10.0.0.1:77", ["a", "b"])
    second = gangs.form(1, "a", "10.0.0.1:78", ["a"])
    assert first is not None
    assert second is not None
    assert first.generation < second.generation
    assert gangs.find(1) == second
    gangs.close(1, "a")
    assert list(gangs.list_open()) == []


def test_a_leader_that_was_replaced_forms_and_ends_nothing(ledger: Ledger) -> None:
    gangs = ledger.gangs
    gangs.call(1, 0, "a")
    gangs.form(1, "a", "10.0.0.1:77", ["a", "b"])
    gangs.call(1, 0, "b")
    assert gangs.form(1, "a", "10.0.0.1:79", ["a"]) is None
    gangs.close(1, "a")
    found = gangs.find(1)
    assert found is not None
    assert (found.leader, found.over, found.members) == ("b", False, ())


def test_of_leaders_at_once_each_gets_its_own_generation(ledger: Ledger) -> None:
    names = [f"w{i}" for i in range(5)]
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda name: ledger.gangs.call(1, 0, name), names))
    found = ledger.gangs.find(1)
    assert found is not None
    assert found.generation == 5


def test_a_damaged_record_is_replaced(ledger: Ledger) -> None:
    ledger.gangs.call(1, 0, "a")
    ledger.store.put(next(e.key for e in ledger.store.list("gangs/")), b"{")
    assert ledger.gangs.find(1) is None
    ledger.gangs.call(1, 0, "b")
    found = ledger.gangs.find(1)
    assert found is not None
    assert found.leader == "b"


def test_the_sweep_and_a_fresh_start_delete_all(ledger: Ledger) -> None:
    def begin() -> None:
        ledger.gangs.call(1, 0, "a")
        ledger.gangs.announce(1, "a", 0.0, 10.0)

    begin()
    for shard in range(3):
        ledger.commits.add(make_commit(shard))
    ledger.sweep()
    assert not list(ledger.store.list("gangs/"))
    begin()
    ledger.start_over(a_plan())
    assert not list(ledger.store.list("gangs/"))
