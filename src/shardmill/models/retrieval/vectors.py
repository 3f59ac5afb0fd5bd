"""Exact cosine search in a matrix, block by block, so that a memory-mapped one is never loaded whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.blas import one_blas_thread
from shardmill.core.pool import in_order

# Each core has one at a time.
_BLOCK_BYTES = 16 << 20
# If fewer of a block's rows may be found, only these are copied and compared, not the whole block.
_GATHERED_SHARE = 0.5

Best = tuple[NDArray[np.int64], NDArray[np.float32]]
NOTHING: Best = np.zeros(0, np.int64), np.zeros(0, np.float32)


def nearest(
    matrix: NDArray[Any],
    queries: NDArray[np.float32],
    k: int,
    items: NDArray[np.int64] | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> list[Best]:
    """Rows and cosines of the k nearest of each query, at most one per item; rows without a vector are left out.

    Only rows that are `allowed` are compared. All queries share one matrix product per block; blocks share the cores.
    """
    queries = normalized(queries)
    return best_rows(np.asarray(matrix), lambda part: cosines(part, queries), len(queries), k, items, allowed)


def best_rows(
    matrix: NDArray[Any],
    score: Callable[[NDArray[Any]], NDArray[np.float32]],
    queries: int,
    k: int,
    items: NDArray[np.int64] | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> list[Best]:
    """The rows with the k highest scores of each query; `score` gives those of some rows, one for each query."""
    block = max(1, _BLOCK_BYTES // (max(matrix.shape[1], queries) * 4))
    best: list[Best] = [NOTHING] * queries
    # What a row must exceed; blocks that were compared before it have lower rows, which win if they are equal.
    least = np.full(queries, -np.inf, np.float32)

    def compare(start: int) -> list[Best]:
        part = matrix[start : start + block]
        rows = np.arange(len(part)) if allowed is None else np.flatnonzero(allowed[start : start + block])
        if not len(rows):
            return [NOTHING] * queries
        gathered = len(rows) < _GATHERED_SHARE * len(part)
        scores = score(part[rows] if gathered else part)
        if not gathered and len(rows) < len(part):
            scores = scores[rows]
        better = [np.flatnonzero(scores[:, i] > least[i]) for i in range(queries)]
        return [join_best(NOTHING, (rows[at] + start, scores[at, i]), k, items) for i, at in enumerate(better)]

    starts = range(0, len(matrix), block)
    with one_blas_thread():
        for found in in_order(compare, starts) if len(starts) > 1 else map(compare, starts):
            best = [join_best(a, b, k, items) for a, b in zip(best, found, strict=True)]
            least = np.array([scores[-1] if len(scores) == k else -np.inf for _, scores in best], np.float32)
    return best


def cosines(part: NDArray[Any], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cosine of each row with each of the queries, which have length one."""
    part = np.asarray(part, dtype=np.float32)
    scores: NDArray[np.float32] = part @ queries.T
    scores /= np.maximum(np.sqrt(np.einsum("ij,ij->i", part, part)), np.float32(1e-12))[:, None]
    return scores


def join_best(a: Best, b: Best, k: int, items: NDArray[np.int64] | None = None) -> Best:
    """The k best of both, best first, at most one per item; of equal ones, the lower row first."""
    rows, scores = np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])
    if items is not None:
        order = np.lexsort((rows, -scores))
        order = order[np.sort(np.unique(items[rows[order]], return_index=True)[1])]
        rows, scores = rows[order], scores[order]
    if len(scores) > 4 * k:
        top = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
        rows, scores = rows[top], scores[top]
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order].astype(np.float32)


def normalized(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Vectors of length one; zero stays zero."""
    found = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(found, axis=-1, keepdims=True).astype(np.float32)
    scaled: NDArray[np.float32] = found / np.maximum(norms, np.float32(1e-12))
    return scaled
