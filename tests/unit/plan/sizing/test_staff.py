"""How many workers a run with a deadline or a budget should have: the decision alone, and campaigns/deadlines.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from campaigns.deadlines import DeadlineOutcome, DeadlineWorld, simulate
from shardmill.plan.sizing.staff import (
    MOST_DECREASES,
    MOST_INCREASES,
    RunPace,
    Staff,
    StaffLimits,
    WorkerKind,
    decide_staff,
)

HOUR = 3600.0
LIMITS = StaffLimits(1, 16, deadline_at=HOUR)


def pace(left: float, *kinds: WorkerKind, now: float = 60.0, **more: float) -> RunPace:
    """One worker does one unit of work per second."""
    return RunPace(now, 0.0, left, kinds or (WorkerKind("T4", 1.0, 0.0001, live=16),), **more)


def test_as_many_as_may_work_until_one_has_a_pace() -> None:
    staff = decide_staff(pace(1000, WorkerKind("T4", 0.0)), LIMITS, None)
    assert (staff.wanted, staff.possible) == (16, True)
    assert decide_staff(pace(1000, WorkerKind("T4", 0.0)), LIMITS, staff) is staff


def test_a_number_is_chosen_that_has_time_to_spare() -> None:
    staff = decide_staff(pace(4 * HOUR), LIMITS, None)
    assert 5 <= staff.wanted <= 8
    assert staff.possible
    assert "before the deadline" in staff.reason


def test_a_deadline_that_all_would_miss_is_called_so_with_what_would_do() -> None:
    staff = decide_staff(pace(20 * HOUR), LIMITS, None)
    assert (staff.wanted, staff.possible) == (16, False)
    assert "past the deadline; about 24 would do" in staff.reason


def test_a_slower_pace_wants_more_workers_and_says_why() -> None:
    chosen = decide_staff(pace(4 * HOUR), LIMITS, None)
    slow = WorkerKind("T4", 0.5, 0.0001, live=chosen.wanted)
    more = decide_staff(pace(3.5 * HOUR, slow, now=600.0), LIMITS, chosen)
    assert more.wanted > chosen.wanted
    assert more.increases == 1
    assert more.reason.startswith(f"{chosen.wanted} would end")


def test_fewer_are_wanted_only_after_a_while_and_not_near_the_end() -> None:
    all_of_them = decide_staff(pace(1000, WorkerKind("T4", 0.0)), LIMITS, None)
    ample = [decide_staff(pace(2 * HOUR, now=now), LIMITS, all_of_them) for now in (65.0, 600.0, 0.7 * HOUR)]
    assert [staff.wanted < 16 for staff in ample] == [False, True, False]
    assert ample[1].decreases == 1


def test_the_cheapest_for_the_work_done_come_first_not_those_with_the_lowest_price() -> None:
    slow = WorkerKind("T4", 1.0, 1.0, live=4)
    fast = WorkerKind("H200", 10.0, 5.0, live=4)
    staff = decide_staff(pace(20 * HOUR, slow, fast), LIMITS, None)
    assert [*staff.by_kind] == ["H200"]


def test_dearer_workers_are_taken_only_as_far_as_the_deadline_needs_them() -> None:
    spot = WorkerKind("spot", 1.0, 1.0, live=4, most=4)
    demand = WorkerKind("on demand", 1.0, 3.0)
    enough = decide_staff(pace(3 * HOUR, spot, demand), LIMITS, None)
    assert enough.by_kind == {"spot": 4}
    short = decide_staff(pace(6 * HOUR, spot, demand), LIMITS, None)
    assert short.by_kind["spot"] == 4
    assert 2 <= short.by_kind["on demand"] <= 4


def test_the_number_stays_within_what_the_user_allows() -> None:
    least = decide_staff(pace(10.0), replace(LIMITS, least=3), None)
    most = decide_staff(pace(100 * HOUR), replace(LIMITS, most=5), None)
    assert (least.wanted, most.wanted) == (3, 5)


def test_the_run_ends_before_what_is_held_would_pass_the_budget() -> None:
    limits = StaffLimits(1, 4, budget_usd=10.0)
    kind = WorkerKind("T4", 1.0, 0.01, live=4)
    on = decide_staff(pace(HOUR, kind, hold_s=100.0, spent_usd=5.9), limits, None)
    assert (on.wanted, on.ends) == (4, False)
    over = decide_staff(pace(HOUR, kind, hold_s=100.0, spent_usd=6.0), limits, on)
    assert (over.wanted, over.ends) == (0, True)
    assert "$6.00 of $10.00 are spent" in over.reason
    assert decide_staff(pace(HOUR, kind), limits, over) is over


def test_a_run_whose_price_is_unknown_does_not_end() -> None:
    staff = decide_staff(pace(HOUR, WorkerKind("new", 1.0, None, live=1)), StaffLimits(1, 4, budget_usd=0.01), None)
    assert not staff.ends


def test_a_pace_that_goes_up_and_down_does_not_make_the_number_do_so() -> None:
    staff: Staff | None = None
    decided = []
    for minute in range(60):
        kind = WorkerKind("T4", 0.3 if minute % 2 else 1.7, 0.0001, live=8)
        staff = decide_staff(pace(8 * (HOUR - 60 * minute), kind, now=60.0 * minute), LIMITS, staff)
        decided.append(staff.wanted)
    assert sum(a != b for a, b in pairwise(decided)) <= MOST_INCREASES + MOST_DECREASES


@pytest.fixture(scope="module")
def outcomes() -> list[DeadlineOutcome]:
    return [simulate(DeadlineWorld.drawn(seed)) for seed in range(1000, 1006)]


def test_simulated_deadlines_are_met_or_called_lost_in_time(outcomes: list[DeadlineOutcome]) -> None:
    assert all(each.met or each.told for each in outcomes)
    assert any(each.met for each in outcomes)
    assert any(not each.met for each in outcomes)


def test_simulated_numbers_do_not_flap(outcomes: list[DeadlineOutcome]) -> None:
    assert max(each.changes for each in outcomes) < 10


def test_simulated_runs_cost_little_more_than_if_all_had_been_known(outcomes: list[DeadlineOutcome]) -> None:
    over = sorted(each.over for each in outcomes if each.met and each.over is not None)
    assert 0 < over[len(over) // 2] < 0.2
