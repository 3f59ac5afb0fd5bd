"""Ranges as an algebra: what is split is covered, what is subtracted is gone, nothing is padded or repeated."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.ranges import Range, cover, split_evenly, split_weighted, subtract

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
