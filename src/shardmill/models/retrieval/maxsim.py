"""MaxSim: of each vector of a query the product with the nearest vector of a row, added up. Exact, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.blas import one_blas_thread
from shardmill.core.pool import in_order
from shardmill.models.retrieval.vectors import NOTHING, Best, join_best

# Each core has one at a time, with as many products.
_BLOCK_BYTES = 16 << 20

# Numbers of rows, in order, all their vectors, and how many each of them has.
Block = tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]


def best_by_tokens(blocks: Iterable[Block], queries: Sequence[NDArray[np.float32]], k: int) -> list[Best]:
    """The rows with the k highest scores of each query, and the scores; rows without vectors are left out."""
    best: list[Best] = [NOTHING] * len(queries)
    wide = max(queries[0].shape[1], sum(map(len, queries)))

    def compare(block: Block) -> list[Best]:
        rows, vectors, counts = block
        scores = max_similarity(vectors, counts, queries)
        return [join_best(NOTHING, (rows[counts > 0], own), k) for own in scores[counts > 0].T]

    with one_blas_thread():
        for found in in_order(compare, _cut(blocks, max(1, _BLOCK_BYTES // (4 * wide)))):
            best = [join_best(a, b, k) for a, b in zip(best, found, strict=True)]
    return best


def max_similarity(
    vectors: NDArray[Any], counts: NDArray[np.int64], queries: Sequence[NDArray[np.float32]]
) -> NDArray[np.float32]:
    """The score of each row with each query; 0 of a row without vectors."""
    scores = np.zeros((len(counts), len(queries)), np.float32)
    there = counts > 0
    if not there.any():
        return scores
    products = np.asarray(vectors, np.float32) @ np.concatenate(queries).T
    nearest = np.maximum.reduceat(products, (np.cumsum(counts) - counts)[there], axis=0)
    lengths = np.array([len(query) for query in queries])
    scores[there] = np.add.reduceat(nearest, np.cumsum(lengths) - lengths, axis=1)
    return scores


def _cut(blocks: Iterable[Block], tokens: int) -> Iterator[Block]:
    """Blocks of at most `tokens` vectors, unless a row has more."""
    for rows, vectors, counts in blocks:
        stops = np.cumsum(counts)
        first = done = 0
        while first < len(rows):
            after = max(first + 1, int(np.searchsorted(stops, done + tokens, side="right")))
            stop = int(stops[after - 1])
            yield rows[first:after], vectors[done:stop], counts[first:after]
            first, done = after, stop
