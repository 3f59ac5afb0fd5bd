"""Ranges as an algebra: what is split is covered, what is subtracted is gone, nothing is padded or repeated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.core.errors import UsageError
from shardmill.core.ranges import DistributedRangeSplitter, Range, cover, split_evenly, split_weighted, subtract

small = st.integers(-50, 50)
ranges = st.lists(st.tuples(small, small).map(lambda p: (min(p), max(p))), max_size=8)


def points(parts: list[Range]) -> set[int]:
    return {i for a, b in parts for i in range(a, b)}


@given(start=small, length=st.integers(0, 200), parts=st.integers(1, 50))
def test_an_even_split_covers_the_whole_and_sizes_differ_by_at_most_one(start: int, length: int, parts: int) -> None:
    split = split_evenly(start, start + length, parts)
    sizes = [b - a for a, b in split]
    assert len(split) == parts
    assert cover(split, start, start + length)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("start", "stop", "parts"), [(0, 10, 0), (0, 10, -1), (5, 4, 1)])
def test_what_cannot_be_split_is_refused(start: int, stop: int, parts: int) -> None:
    with pytest.raises(ValueError, match=r"parts must be|cannot end"):
        split_evenly(start, stop, parts)


@given(weights=st.lists(st.integers(0, 30), max_size=40), target=st.integers(1, 60))
def test_weighted_groups_tile_the_things_and_stay_within_the_target(weights: list[int], target: int) -> None:
    groups = split_weighted(weights, target)
    assert cover(groups, 0, len(weights))
    for a, b in groups:
        assert b > a
        assert b - a == 1 or sum(weights[a:b]) <= target


@given(weights=st.lists(st.integers(1, 30), min_size=2, max_size=40), target=st.integers(1, 60))
def test_neighbouring_groups_would_not_fit_together(weights: list[int], target: int) -> None:
    groups = split_weighted(weights, target)
    for (a, b), _ in pairwise(groups):
        assert sum(weights[a : b + 1]) > target


@given(whole=ranges, taken=ranges)
def test_subtract_leaves_exactly_the_points_that_were_not_taken(whole: list[Range], taken: list[Range]) -> None:
    left = subtract(whole, taken)
    assert points(left) == points(whole) - points(taken)
    assert all(b > a for a, b in left)


@given(length=st.integers(0, 100), parts=st.integers(1, 20), done=st.sets(st.integers(0, 19)))
def test_what_is_done_and_what_is_left_make_the_whole(length: int, parts: int, done: set[int]) -> None:
    split = split_evenly(0, length, parts)
    finished = [split[i] for i in done if i < parts]
    assert cover([*finished, *subtract([(0, length)], finished)], 0, length)


@given(parts=ranges, start=small, length=st.integers(0, 60))
def test_cover_is_true_of_tilings_only(parts: list[Range], start: int, length: int) -> None:
    tiles = [p for p in parts if p[0] != p[1]]
    once = sum(b - a for a, b in tiles) == length and points(tiles) == set(range(start, start + length))
    assert cover(parts, start, start + length) == once


@given(
    samples=st.integers(0, 300),
    start=st.integers(0, 100),
    weights=st.lists(st.floats(0, 10) | st.integers(0, 5), min_size=1, max_size=12).filter(any),
    even=st.booleans(),
)
def test_a_splitter_gives_every_sample_to_one_rank_and_finds_it_again(
    samples: int, start: int, weights: list[float], even: bool
) -> None:
    splitter = DistributedRangeSplitter(samples, len(weights), weights=None if even else weights, start=start)
    assert splitter.validate_ranges()
    for rank, (begin, end) in enumerate(splitter.get_all_ranges()):
        assert [splitter.get_rank_for_sample(i) for i in range(begin, end)] == [rank] * (end - begin)
    sizes = [b - a for a, b in splitter.get_all_ranges()]
    if even:
        assert sizes == [b - a for a, b in split_evenly(0, samples, len(weights))]
    else:
        assert all(abs(n - samples * w / sum(weights)) <= 1.001 for n, w in zip(sizes, weights, strict=True))


@given(samples=st.integers(0, 500), levels=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_splitters_within_splitters_cover_the_whole(samples: int, levels: list[int]) -> None:
    splitters = [DistributedRangeSplitter(samples, levels[0])]
    for size in levels[1:]:
        splitters = [s.within(rank, size) for s in splitters for rank in range(s.world_size)]
    assert cover([r for s in splitters for r in s.get_all_ranges()], 0, samples)


@given(samples=st.integers(0, 200), runs=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), max_size=8))
def test_interleaved_ranks_may_change_in_number_at_any_step(samples: int, runs: list[tuple[int, int]]) -> None:
    done, seen = 0, []
    for size, steps in [*runs, (3, samples)]:
        splitter = DistributedRangeSplitter(samples, size)
        for rank in range(size):
            seen.extend(splitter.interleaved(rank, done)[:steps])
        done = min(samples, done + size * steps)
    assert sorted(seen) == list(range(samples))


def test_the_largest_ranges_are_exact_and_found_at_once() -> None:
    splitter = DistributedRangeSplitter(10**30 + 7, 10**6)
    begin, end = splitter.get_rank_range(999_999)
    assert end == 10**30 + 7
    assert splitter.get_rank_for_sample(begin) == 999_999
    assert splitter.get_rank_for_sample(begin - 1) == 999_998


def test_a_gap_and_an_overlap_do_not_validate() -> None:
    splitter = DistributedRangeSplitter(10, 2)
    assert not splitter.validate_ranges([(0, 5), (6, 10)])
    assert not splitter.validate_ranges([(0, 6), (5, 10)])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: DistributedRangeSplitter(10, 0),
        lambda: DistributedRangeSplitter(-1, 2),
        lambda: DistributedRangeSplitter(10, 2).get_rank_range(2),
        lambda: DistributedRangeSplitter(10, 2).get_rank_range(-1),
        lambda: DistributedRangeSplitter(10, 2).get_rank_for_sample(10),
        lambda: DistributedRangeSplitter(0, 2).get_rank_for_sample(0),
        lambda: DistributedRangeSplitter(10, 2).interleaved(0, 11),
        lambda: DistributedRangeSplitter(10, 2, weights=[1]),
        lambda: DistributedRangeSplitter(10, 2, weights=[1, -1]),
        lambda: DistributedRangeSplitter(10, 2, weights=[0, 0]),
        lambda: DistributedRangeSplitter(10, 2, weights=[1, float("nan")]),
        lambda: DistributedRangeSplitter(10, 2, weights=[1, float("inf")]),
    ],
)
def test_what_no_splitter_can_do_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(UsageError) as error:
        wrong()
    assert error.value.hint
