"""Exact cosine search in a matrix, block by block, so that a memory-mapped one is never loaded whole."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 64 << 20

Best = tuple[NDArray[np.int64], NDArray[np.float32]]


def nearest(
    matrix: NDArray[Any], queries: NDArray[np.float32], k: int, items: NDArray[np.int64] | None = None
) -> list[Best]:
    """Rows and cosines of the k nearest of each query, at most one per item; rows without a vector are left out.

    All queries share one matrix product per block.
    """
    queries = normalized(queries)
    block = max(1, _BLOCK_BYTES // (max(matrix.shape[1], len(queries)) * 4))
    best: list[Best] = [(np.zeros(0, np.int64), np.zeros(0, np.float32))] * len(queries)
    for start in range(0, len(matrix), block):
        part = np.asarray(matrix[start : start + block], dtype=np.float32)
        scores = part @ queries.T
        scores /= np.maximum(np.linalg.norm(part, axis=1), 1e-12)[:, None]
        scores[~np.isfinite(scores)] = -np.inf
        rows = np.arange(start, start + len(part))
        best = [join_best(found, (rows, scores[:, i]), k, items) for i, found in enumerate(best)]
    return [(rows[np.isfinite(scores)], scores[np.isfinite(scores)]) for rows, scores in best]


def join_best(a: Best, b: Best, k: int, items: NDArray[np.int64] | None = None) -> Best:
    """The k best of both, best first; of equal ones, the lower row first."""
    rows, scores = np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])
    if items is not None:
        order = np.lexsort((rows, -scores))
        order = order[np.sort(np.unique(items[rows[order]], return_index=True)[1])]
        rows, scores = rows[order], scores[order]
    if len(scores) > 4 * k:
        top = np.argpartition(-scores, k - 1)[:k]
        rows, scores = rows[top], scores[top]
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order].astype(np.float32)


def normalized(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Vectors of length one; zero stays zero."""
    found = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(found, axis=-1, keepdims=True).astype(np.float32)
    scaled: NDArray[np.float32] = found / np.maximum(norms, np.float32(1e-12))
    return scaled
