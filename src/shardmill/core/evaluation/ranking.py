"""How good rankings are, by the rules of BEIR and trec_eval: MRR, recall and nDCG at a depth; how alike two are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

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


def overlap(one: Sequence[str], other: Sequence[str], k: int) -> float:
    """The share of the first k of two rankings that is in both; 1 if both are empty.

    >>> overlap(["a", "b"], ["b", "c"], 2)
    0.5
    """
    longest = max(len(one[:k]), len(other[:k]))
    return len(set(one[:k]) & set(other[:k])) / longest if longest else 1.0


def rank_correlation(one: Sequence[str], other: Sequence[str], k: int) -> float:
    """Kendall's tau-b over all that is among the first k of either; what a ranking lacks is tied behind its last.

    1 is the same order. Two rankings that share nothing are below 0; 1 if both are empty.

    >>> rank_correlation(["a", "b", "c"], ["a", "c", "b"], 3)
    0.3333333333333333
    """
    names = list(dict.fromkeys([*one[:k], *other[:k]]))
    ranks = [{name: rank for rank, name in reversed([*enumerate(each[:k])])} for each in (one, other)]
    places = [(ranks[0].get(name, k), ranks[1].get(name, k)) for name in names]
    agreed, untied = 0, [0, 0]
    for (a, b), (c, d) in combinations(places, 2):
        agreed += ((a > c) - (a < c)) * ((b > d) - (b < d))
        untied[0] += a != c
        untied[1] += b != d
    if all(untied):
        return agreed / math.sqrt(untied[0] * untied[1])
    return 1.0 if len(names) < 2 else 0.0


def _gain(grades: Sequence[int]) -> float:
    return sum(grade / math.log2(rank + 1) for rank, grade in enumerate(grades, 1))
