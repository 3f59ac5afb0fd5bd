"""Which rows a sample has, and what it says of its power."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.core.errors import UsageError
from shardmill.results.drawn import draw, power, sample_size


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(0, 200), st.integers(0, 2**63))
def test_a_sample_has_rows_of_the_shards_each_once(counts: list[int], asked: int, seed: int) -> None:
    rows = sample_size(asked, sum(counts))
    drawn = [(shard, list(items)) for shard, items in draw(counts, rows, seed)]
    assert drawn == [(shard, list(items)) for shard, items in draw(counts, rows, seed)]
    assert [shard for shard, _ in drawn] == sorted({shard for shard, _ in drawn})
    assert all(items == sorted(set(items)) and 0 <= items[0] <= items[-1] < counts[shard] for shard, items in drawn)
    assert sum(len(items) for _, items in drawn) == rows


def test_every_shard_can_be_drawn() -> None:
    seen = {shard for seed in range(200) for shard, _ in draw([10] * 40, 5, seed)}
    assert seen == set(range(40))


@pytest.mark.parametrize(
    ("rows", "total", "said"),
    [
        (64, 8_243, "missed once in 27 times"),
        (1, 1_000, "missed 95 times in 100"),
        (8_243, 8_243, "would not be missed"),
        (5_000, 100_000, "less than once in a million times"),
        (10, 10, "would not be missed"),
    ],
)
def test_the_power_is_told(rows: int, total: int, said: str) -> None:
    assert said in power(rows, total)


@pytest.mark.parametrize("asked", ["-1", "101%", "some", "1.5", "%", ""])
def test_what_is_no_size_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="--sample"):
        sample_size(asked, 100)
