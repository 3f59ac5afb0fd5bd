"""How many requests are sent at once, with simulated servers on a clock of their own."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from shardmill.models.endpoints.pace import START, Pace


def simulate(pace: Pace, answers: int, time_of: Callable[[int], float], now: float = 0.0) -> float:
    """Keep as many requests under way as the pace allows; `time_of` gives the time of a request among so many."""
    under_way: list[tuple[float, float]] = []
    for _ in range(answers):
        while len(under_way) < pace.limit:
            heapq.heappush(under_way, (now + time_of(len(under_way) + 1), now))
        now, began = heapq.heappop(under_way)
        pace.answered(now, began, 1.0, was_full=len(under_way) + 1 >= pace.limit)
    return now


def slots(number: int) -> Callable[[int], float]:
    """A server that works on this many requests at once; more of them wait for one another."""
    return lambda under_way: max(1.0, under_way / number)


@pytest.mark.parametrize("number", [16, 60, 256])
def test_the_limit_rises_while_throughput_does(number: int) -> None:
    pace = Pace(START, 1024)
    simulate(pace, 40_000, slots(number))
    assert 0.9 * number <= pace.limit <= 1.5 * number
    assert pace.peak <= 4 * number


def test_the_limit_stays_below_the_most() -> None:
    pace = Pace(START, 20)
    simulate(pace, 5_000, slots(1_000))
    assert (pace.limit, pace.peak) == (20, 20)


def test_a_small_server_is_not_crowded() -> None:
    pace = Pace()
    simulate(pace, 5_000, slots(2))
    assert pace.limit <= 2 * START


def test_requests_refused_together_lower_the_limit_once() -> None:
    pace = Pace(100)
    for _ in range(20):
        pace.overloaded(now=10.0, began=9.0)
    assert pace.limit == 70
    pace.overloaded(now=11.0, began=10.5)
    assert pace.limit == 49
    for at in range(100):
        pace.overloaded(now=20.0 + at, began=19.5 + at)
    assert pace.limit == 1


def test_after_a_refusal_the_limit_rises_again() -> None:
    pace = Pace()
    now = simulate(pace, 5_000, slots(64))
    before = pace.limit
    pace.overloaded(now, now - 0.5)
    assert pace.limit < before
    simulate(pace, 20_000, slots(64), now)
    assert pace.limit >= 0.8 * before


def test_a_server_that_slows_down_gets_fewer_requests_and_then_more() -> None:
    pace = Pace()
    now = simulate(pace, 10_000, slots(64))
    before = pace.limit
    now = simulate(pace, 600, lambda under_way: 30.0 * max(1.0, under_way / 8), now)
    assert pace.limit < 0.8 * before
    simulate(pace, 40_000, slots(64), now)
    assert pace.limit >= 0.8 * before


def test_a_server_that_was_away_is_begun_with_one_request() -> None:
    pace = Pace()
    now = simulate(pace, 5_000, slots(64))
    pace.returned(now)
    assert pace.limit == 1
    simulate(pace, 1_000, slots(64), now)
    assert pace.limit >= 32


def test_answers_to_a_caller_without_requests_say_nothing() -> None:
    pace = Pace()
    for at in range(1_000):
        pace.answered(float(at), at - 0.5, 1.0, was_full=False)
    assert pace.limit == START
