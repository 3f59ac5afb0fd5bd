"""The expected end of runs on a simulated clock, and of plain cases."""

from __future__ import annotations

import pytest

from benchmarks.eta import EtaWorld, judge
from shardmill.run.status.eta import WorkerPace, estimate_end


def test_the_end_is_within_a_tenth_from_a_fifth_on_and_a_lease_after_a_loss() -> None:
    """Two hundred runs with skewed lengths. The range holds nine times of ten."""
    judged = [judge(EtaWorld.draw(seed), checks=8) for seed in range(200)]
    assert sum(j.worst > 0.1 for j in judged) == 0
    assert sum(j.held for j in judged) >= 0.9 * sum(j.asked for j in judged)
    assert sum(j.width for j in judged) / len(judged) < 0.25


def test_an_even_run_is_divided() -> None:
    paces = [WorkerPace(0.0, 100.0, 1000.0, held=(5.0,)) for _ in range(4)]
    eta = estimate_end(100.0, [10.0] * 200, paces, [(0.0, 0.0), (50.0, 2000.0), (100.0, 4000.0)])
    assert eta is not None
    assert eta.likely_s == pytest.approx((2000 + 20) / 40, rel=0.02)
    assert eta.low_s < eta.likely_s < eta.high_s


def test_a_worker_that_is_lost_does_no_more() -> None:
    both = [WorkerPace(0.0, 100.0, 1000.0), WorkerPace(0.0, 100.0, 1000.0)]
    one = [both[0], WorkerPace(0.0, 60.0, 600.0, live=False)]
    done = [(0.0, 0.0), (100.0, 2000.0)]
    with_both, with_one = (estimate_end(100.0, [10.0] * 100, paces, done) for paces in (both, one))
    assert with_both is not None
    assert with_one is not None
    assert with_one.likely_s == pytest.approx(2 * with_both.likely_s, rel=0.05)


@pytest.mark.parametrize(
    "paces", [[], [WorkerPace(0.0, 5.0, 100.0)], [WorkerPace(0.0, 100.0, 1000.0, live=False)], [WorkerPace(9, 9, 0)]]
)
def test_without_a_pace_there_is_no_end(paces: list[WorkerPace]) -> None:
    assert estimate_end(100.0, [10.0], paces, []) is None


@pytest.mark.parametrize("ahead_s", [-3600.0, -40.0, 40.0, 3600.0])
def test_clocks_of_workers_may_be_wrong(ahead_s: float) -> None:
    """Found by a simulated run: workers that began in the future of the one who looks."""
    began = 100.0 + ahead_s
    paces = [WorkerPace(began, began + 20.0, 200.0, held=(5.0,)), WorkerPace(began, began + 20.0, 200.0)]
    eta = estimate_end(100.0, [10.0] * 10, paces, [(began, 0.0), (began + 10.0, 200.0), (100.0, 400.0)])
    assert eta is not None
    assert 0 <= eta.low_s <= eta.likely_s <= eta.high_s
    assert eta.likely_s == pytest.approx(105 / 20, rel=1.0)


def test_what_is_held_ends_last_and_a_straggler_is_overtaken() -> None:
    paces = [WorkerPace(0.0, 100.0, 1000.0, held=(10.0,)), WorkerPace(0.0, 100.0, 100.0, held=(100.0,))]
    eta = estimate_end(100.0, [], paces, [(0.0, 0.0), (100.0, 1100.0)])
    assert eta is not None
    assert eta.likely_s < 20


def test_workers_of_an_earlier_day_do_not_widen_the_range() -> None:
    """A run that was stopped and resumed has the records of both days."""
    day = 86_400.0
    old = [WorkerPace(0.0, 1000.0, 20_000.0, live=False) for _ in range(4)]
    now = [WorkerPace(day, day + 1000.0, 10_000.0) for _ in range(4)]
    done = [(100.0 * i, 8000.0 * i) for i in range(11)]
    done += [(day + 100.0 * i, 80_000 + 4000.0 * i) for i in range(11)]
    eta = estimate_end(day + 1000.0, [100.0] * 400, now, done[11:])
    both = estimate_end(day + 1000.0, [100.0] * 400, [*old, *now], done)
    assert eta is not None
    assert both == eta
    assert both.likely_s == pytest.approx(1000.0, rel=0.05)
    assert both.high_s < 1100
