"""Exact cosine search in a matrix, block by block, so that a memory-mapped one is never loaded whole."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 64 << 20


def nearest(
    matrix: NDArray[Any], query: NDArray[np.float32], k: int, items: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows and cosines of the k nearest, at most one per item; rows without a vector are never returned."""
    query = query.astype(np.float32) / max(float(np.linalg.norm(query)), 1e-12)
    block = max(1, _BLOCK_BYTES // (matrix.shape[1] * 4))
    best_rows, best_scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
    for start in range(0, len(matrix), block):
        part = np.asarray(matrix[start : start + block], dtype=np.float32)
        norms = np.linalg.norm(part, axis=1)
        scores = (part @ query) / np.maximum(norms, 1e-12)
        scores[~np.isfinite(scores)] = -np.inf
        scores = np.concatenate([best_scores, scores])
        rows = np.concatenate([best_rows, np.arange(start, start + len(part))])
        if items is not None:
            order = np.argsort(-scores, kind="stable")
            order = order[np.sort(np.unique(items[rows[order]], return_index=True)[1])]
            scores, rows = scores[order], rows[order]
        top = np.argsort(-scores, kind="stable")[:k] if len(scores) <= 4 * k else _top(scores, k)
        best_rows, best_scores = rows[top], scores[top]
    found = np.isfinite(best_scores)
    return best_rows[found], best_scores[found].astype(np.float32)


def _top(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    candidates = np.argpartition(-scores, k - 1)[:k]
    return candidates[np.lexsort((candidates, -scores[candidates]))]
