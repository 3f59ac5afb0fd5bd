"""Search by meaning, by words, or by both, which are fused by rank: the same in runs and in tables.

Reciprocal rank fusion: a row's score is the sum of 1 / (60 + rank) over the lists it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shardmill.core.errors import UsageError

Mode = Literal["vector", "text", "hybrid"]

RRF = 60
# Each list has this many times the rows that are wanted, before both are fused.
_CANDIDATES = 4


def choose_mode(hybrid: bool, words: bool, language: str = "") -> Mode:
    if hybrid and words:
        raise UsageError("--hybrid already includes --words.", hint="Leave out one of them.")
    if language and not (hybrid or words):
        raise UsageError("A language is for a search by words.", hint="Add --words or --hybrid.")
    return "hybrid" if hybrid else "text" if words else "vector"


def count_candidates(k: int) -> int:
    """How many rows each list has if `k` are wanted."""
    return max(_CANDIDATES * k, RRF)


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
