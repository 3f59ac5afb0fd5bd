"""Search among vectors that are stored as bytes or bits; the query keeps its numbers.

Bytes are turned into the vectors that they stand for, block by block, and compared as these are. Of bits, the rows that
differ from the query in the fewest are found first, and then ranked by the cosine of the query with their signs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.quantised import Quantiser
from shardmill.models.retrieval.vectors import NOTHING, Best, best_rows, cosines, join_best, normalized

# Rows that are ranked again for each one that is wanted, and at least.
_RANKED_AGAIN, _LEAST_AGAIN = 10, 100

_ONES = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def nearest_codes(
    matrix: NDArray[Any],
    quantiser: Quantiser,
    queries: NDArray[np.float32],
    k: int,
    items: NDArray[np.int64] | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> list[Best]:
    """Rows and cosines of the k nearest of each query, at most one per item; rows without a vector are left out."""
    matrix, queries = np.asarray(matrix), normalized(queries)
    if quantiser.dtype != "binary":
        return best_rows(matrix, lambda part: cosines(quantiser.decode(part), queries), len(queries), k, items, allowed)
    wanted, depth = quantiser.encode(queries), max(_RANKED_AGAIN * k, _LEAST_AGAIN)
    near = best_rows(matrix, lambda part: _agreeing(part, wanted), len(queries), depth, items, allowed)
    return [
        join_best((rows, cosines(quantiser.decode(matrix[rows]), query[None])[:, 0]), NOTHING, k)
        for query, (rows, _) in zip(queries, near, strict=True)
    ]


def _agreeing(part: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> NDArray[np.float32]:
    """How few bits of each row differ from each of the queries, as a number below zero; NaN for a row without bits."""
    words = np.uint64 if part.shape[1] % 8 == 0 else np.uint8
    rows, queries = np.ascontiguousarray(part).view(words), wanted.view(words)
    scores = np.empty((len(rows), len(queries)), np.float32)
    for i, query in enumerate(queries):
        scores[:, i] = _count_ones(rows ^ query)
    np.negative(scores, out=scores)
    scores[~part.any(axis=1)] = np.nan
    return scores


def _count_ones(words: NDArray[Any]) -> NDArray[Any]:
    if hasattr(np, "bitwise_count"):  # NumPy 2
        found: NDArray[Any] = np.bitwise_count(words).sum(axis=1, dtype=np.int32)
        return found
    return np.asarray(_ONES[words.view(np.uint8)].sum(axis=1, dtype=np.int32))
