"""Reciprocal rank fusion: a row's score is the sum of 1 / (60 + rank) over the lists it is in."""

from __future__ import annotations

from collections.abc import Sequence

RRF = 60


def fuse(rankings: Sequence[Sequence[int]], k: int) -> list[tuple[int, float]]:
    """The best k rows of several rankings with their scores; of equal ones, the one met first.

    >>> [row for row, _ in fuse([[7, 8, 9], [9, 7]], 2)]
    [7, 9]
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + 1 / (RRF + rank)
    return sorted(scores.items(), key=lambda each: -each[1])[:k]
