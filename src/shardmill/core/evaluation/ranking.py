"""How good rankings are, by the rules of BEIR and trec_eval: MRR, recall and nDCG at a depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Grades = Mapping[str, int]


def reciprocal_rank(ranked: Sequence[str], right: Grades, k: int) -> float:
    """One over the rank of the first right passage among the first k; 0 if there is none.

    >>> reciprocal_rank(["b", "a"], {"a": 1}, 10)
    0.5
    """
    return next((1 / rank for rank, name in enumerate(ranked[:k], 1) if right.get(name, 0) > 0), 0.0)


def recall(ranked: Sequence[str], right: Grades, k: int) -> float:
    """The share of the right passages that is among the first k."""
    wanted = {name for name, grade in right.items() if grade > 0}
    return len(wanted & set(ranked[:k])) / len(wanted) if wanted else 0.0


def ndcg(ranked: Sequence[str], right: Grades, k: int) -> float:
    """The discounted gain of the first k, over that of the best ranking; the gain is the grade.

    >>> round(ndcg(["b", "a"], {"a": 1}, 10), 4)
    0.6309
    """
    ideal = _gain(sorted((grade for grade in right.values() if grade > 0), reverse=True)[:k])
    return _gain([max(0, right.get(name, 0)) for name in ranked[:k]]) / ideal if ideal else 0.0


def _gain(grades: Sequence[int]) -> float:
    return sum(grade / math.log2(rank + 1) for rank, grade in enumerate(grades, 1))
