"""The wanted number of workers: one decides, others wait for the duty, and at the budget nothing more is claimed."""

from __future__ import annotations

from pathlib import Path

from shardmill.ledger import STOPPED, Ledger
from shardmill.ledger.staff import KEY
from shardmill.plan.sizing.staff import Staff
from shardmill.worker.staff import end_at_budget
from tests.support.ledgers import a_plan


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def two(folder: Path, clock: Clock) -> tuple[Ledger, Ledger]:
    first, second = Ledger(folder, clock), Ledger(folder, clock)
    first.create(a_plan(shards=4))
    second.plan()
    return first, second


def test_one_worker_decides_until_its_duty_is_over(tmp_path: Path) -> None:
    clock = Clock()
    first, second = two(tmp_path, clock)
    assert first.staff.look() is None
    assert first.staff.decide("a", 60.0, lambda before: Staff(3, "so", clock.now)) is not None
    assert second.staff.decide("b", 60.0, lambda before: Staff(9, "no", clock.now)) is None
    seen = second.staff.look()
    assert seen is not None
    assert seen.now is not None
    assert (seen.by, seen.now.wanted, [each["reason"] for each in seen.past]) == ("a", 3, ["so"])
    clock.now += 61.0
    assert second.staff.decide("b", 60.0, lambda before: Staff(5, "more", clock.now)) is not None
    again = first.staff.look()
    assert again is not None
    assert again.now is not None
    assert (again.by, again.now.wanted, len(again.past)) == ("b", 5, 2)


def test_a_decision_that_stays_is_logged_once(tmp_path: Path) -> None:
    ledger, _ = two(tmp_path, Clock())
    for _ in range(3):
        ledger.staff.decide("a", 60.0, lambda before: before or Staff(3, "so", 1000.0))
    log = ledger.staff.look()
    assert log is not None
    assert len(log.past) == 1


def test_who_decides_meanwhile_wins_and_the_other_gives_way(tmp_path: Path) -> None:
    first, second = two(tmp_path, Clock())

    def slow(before: Staff | None) -> Staff:
        second.store.put(KEY, second.store.get(KEY).replace(b'"a"', b'"b"'))
        return Staff(3, "late", 1000.0)

    assert first.staff.decide("a", 60.0, slow) is None
    log = first.staff.look()
    assert log is not None
    assert log.now is None


def test_a_damaged_record_stops_nobody_and_is_decided_again(tmp_path: Path) -> None:
    ledger, _ = two(tmp_path, Clock())
    for damaged in (b"{", b'{"generation": 1}', b"[]"):
        ledger.store.put(KEY, damaged)
        assert ledger.staff.look() is None
        assert ledger.staff.decide("a", 60.0, lambda before: Staff(2, "so", 1000.0)) is not None


def test_at_the_budget_nothing_is_claimed_and_the_run_stops_once_all_is_committed(tmp_path: Path) -> None:
    clock = Clock()
    first, second = two(tmp_path, clock)
    first.put_execution({"budget_usd": 5.0, "acts": True})
    claim = first.claim("a", 4, lease_s=60.0)
    assert claim is not None
    first.staff.decide("a", 60.0, lambda before: Staff(0, "$5.00 of $5.00 are spent", clock.now, ends=True))
    second.staff.look()
    assert second.claim("b", 4, lease_s=60.0) is None
    assert not end_at_budget(second, "b")
    first.leases.release(claim, "a")
    assert end_at_budget(second, "b")
    state = first.state.look()
    assert (state.state, state.by, state.cause) == (STOPPED, "its budget", "$5.00 of $5.00 are spent")
    refusal = first.state.refusal()
    assert refusal is not None
    assert "stopped by its budget" in refusal.message
    assert "--budget 10USD" in refusal.hint


def test_a_resumed_run_decides_anew_and_keeps_what_was_decided(tmp_path: Path) -> None:
    first, second = two(tmp_path, Clock())
    first.staff.decide("a", 60.0, lambda before: Staff(0, "spent", 1000.0, ends=True))
    second.staff.begin_again()
    log = second.staff.look()
    assert log is not None
    assert (log.now, len(log.past), second.staff.is_ending) == (None, 1, False)
    assert second.claim("b", 4, lease_s=60.0) is not None


def test_another_generation_of_the_run_has_its_own_number(tmp_path: Path) -> None:
    ledger, _ = two(tmp_path, Clock())
    ledger.staff.decide("a", 60.0, lambda before: Staff(3, "so", 1000.0))
    ledger.start_over(a_plan(shards=3))
    assert ledger.staff.look() is None
