"""What a run did over time, from the histories of its workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.ledger import History, HistoryPoint
from shardmill.run.status.past import join_histories


def test_two_workers_are_added_and_their_use_is_a_mean() -> None:
    one = History([HistoryPoint(10.0, 10.0, rows=100, tokens=1000, memory_bytes=1.0, use=1.0)])
    two = History([HistoryPoint(10.0, 10.0, rows=50, tokens=500, memory_bytes=2.0, use=0.5)])
    points = join_histories([one, two])
    assert sum(point.rows for point in points) == 150
    assert sum(point.tokens for point in points) == 1500
    assert {point.memory_bytes for point in points} == {3.0}
    assert {point.use for point in points} == {0.75}


def test_a_worker_that_ended_counts_until_then() -> None:
    long = History([HistoryPoint(10.0 * (i + 1), 10.0, rows=10, memory_bytes=1.0) for i in range(4)])
    short = History([HistoryPoint(10.0, 10.0, rows=10, memory_bytes=1.0)])
    points = join_histories([long, short], bins=4)
    assert [point.memory_bytes for point in points] == [2.0, 1.0, 1.0, 1.0]
    assert [point.rows for point in points] == [20, 10, 10, 10]
    assert {point.use for point in points} == {None}


def test_nothing_recorded_is_no_history() -> None:
    assert join_histories([]) == []
    assert join_histories([History()]) == []


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.1, 500.0), st.integers(0, 10**6)), min_size=1, max_size=30),
        min_size=1,
        max_size=5,
    )
)
def test_no_row_is_lost(workers: list[list[tuple[float, int]]]) -> None:
    histories = []
    for stretches in workers:
        at, points = 1e9, []
        for seconds, rows in stretches:
            at += seconds
            points.append(HistoryPoint(at, seconds, rows=rows))
        histories.append(History(points))
    joined = join_histories(histories)
    assert len(joined) <= 120
    expected = sum(rows for stretches in workers for _, rows in stretches)
    assert sum(point.rows for point in joined) == pytest.approx(expected, abs=len(joined))
