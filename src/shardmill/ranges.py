"""Half-open integer ranges: split, subtract, cover. No padding, no repeats, no floats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

Range = tuple[int, int]


def split_evenly(start: int, stop: int, parts: int) -> list[Range]:
    """Cut [start, stop) into `parts` ranges whose sizes differ by at most one.

    >>> split_evenly(0, 10, 3)
    [(0, 4), (4, 7), (7, 10)]
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, not {parts}")
    if stop < start:
        raise ValueError(f"a range cannot end ({stop}) before it starts ({start})")
    size, extra = divmod(stop - start, parts)
    bounds = [start + i * size + min(i, extra) for i in range(parts + 1)]
    return list(pairwise(bounds))


def split_weighted(weights: Sequence[int], target: int) -> list[Range]:
    """Group consecutive things into ranges of about `target` weight each; no group is empty.

    >>> split_weighted([5, 5, 5, 20, 1], 10)
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    groups: list[Range] = []
    start, weight = 0, 0
    for i, w in enumerate(weights):
        if i > start and weight + w > target:
            groups.append((start, i))
            start, weight = i, 0
        weight += w
    if start < len(weights):
        groups.append((start, len(weights)))
    return groups


def subtract(whole: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """What of `whole` is not in `taken`.

    >>> subtract([(0, 10)], [(2, 4), (8, 12)])
    [(0, 2), (4, 8)]
    """
    holes = sorted((a, b) for a, b in taken if b > a)
    left: list[Range] = []
    for start, stop in sorted(whole):
        at = start
        for a, b in holes:
            if b <= at or a >= stop:
                continue
            if a > at:
                left.append((at, a))
            at = max(at, b)
        if at < stop:
            left.append((at, stop))
    return left


def cover(parts: Iterable[Range], start: int, stop: int) -> bool:
    """Whether the parts tile [start, stop) exactly: no gap, no overlap, nothing outside.

    >>> cover([(4, 10), (0, 4)], 0, 10), cover([(0, 4), (5, 10)], 0, 10)
    (True, False)
    """
    at = start
    for a, b in sorted(p for p in parts if p[0] != p[1]):
        if a != at or b < a:
            return False
        at = b
    return at == stop
