"""Approximate search for runs of millions of rows: one HNSW graph per group, by usearch, opened memory-mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.extras import missing_package
from shardmill.models.retrieval.vectors import Best, nearest, normalized

_CONNECTIVITY, _EXPANSION_ADD, EXPANSION_SEARCH = 16, 128, 128
_ADDED_AT_ONCE = 10_000
_RECALL_SAMPLE, _RECALL_AT = 100, 10


def write_graph(matrix: NDArray[Any], path: Path) -> None:
    """Build the graph of one group; rows without a vector are left out."""
    graph = _library().Index(
        ndim=matrix.shape[1],
        metric="cos",
        dtype="f16",
        connectivity=_CONNECTIVITY,
        expansion_add=_EXPANSION_ADD,
        enable_key_lookups=False,
    )
    for start in range(0, len(matrix), _ADDED_AT_ONCE):
        part = np.asarray(matrix[start : start + _ADDED_AT_ONCE], np.float32)
        there = np.flatnonzero(np.isfinite(part).all(axis=1))
        if len(there):
            graph.add(there + start, normalized(part[there]))
    graph.save(str(path))


class VectorGraph:
    """The graph of one group. It finds candidates; their scores are exact, from the matrix."""

    def __init__(self, path: Path, matrix: NDArray[Any]) -> None:
        self._graph = _library().Index.restore(str(path), view=True)
        self._graph.expansion_search = EXPANSION_SEARCH
        self._matrix = matrix

    def search(self, queries: NDArray[np.float32], k: int) -> list[Best]:
        self._graph.expansion_search = max(EXPANSION_SEARCH, 2 * k)
        found = []
        for query in normalized(queries):
            rows = np.sort(np.asarray(self._graph.search(query, k).keys, np.int64).reshape(-1))
            [(at, scores)] = nearest(self._matrix[rows], query[None], k)
            found.append((rows[at], scores))
        return found


def measure_recall(matrix: NDArray[Any], graph: VectorGraph, seed: int = 0) -> float:
    """The share of the ten exact nearest rows that the graph finds, for sampled rows as queries."""
    there = np.flatnonzero(np.isfinite(np.asarray(matrix[:, 0], np.float32)))
    if not len(there):
        return 1.0
    rows = np.random.default_rng(seed).choice(there, min(_RECALL_SAMPLE, len(there)), replace=False)
    queries = np.asarray(matrix[np.sort(rows)], np.float32)
    hits = wanted = 0
    for (due, _), (seen, _) in zip(
        nearest(matrix, queries, _RECALL_AT), graph.search(queries, _RECALL_AT), strict=True
    ):
        hits += len(np.intersect1d(due, seen))
        wanted += len(due)
    return hits / wanted


def _library() -> Any:
    try:
        from usearch import index
    except ImportError as error:
        raise missing_package("usearch") from error
    return index
