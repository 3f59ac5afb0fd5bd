"""Sparse vectors by word: which rows have a word, and with what weight. Arrays on disk, memory-mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardmill.models.retrieval.vectors import NOTHING, Best, join_best

# The words of a query, each once, and their weights.
SparseQuery = tuple[NDArray[np.int32], NDArray[np.float32]]
# The words of some rows, their weights, and how many words each row has.
Block = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]
_STARTS, _ROWS, _WEIGHTS = "starts.npy", "rows.npy", "weights.npy"


def write_inverted(read: Callable[[], Iterable[Block]], dims: int, folder: Path) -> None:
    """Index rows into a new folder. They are read twice: to count, and to fill; memory holds a block at a time."""
    counts, total = np.zeros(dims, np.int64), 0
    for words, _, lengths in read():
        counts += np.bincount(words, minlength=dims)
        total += len(lengths)
    starts = np.concatenate([[0], np.cumsum(counts)])
    folder.mkdir(parents=True)
    shape = (int(starts[-1]),)
    rows = np.lib.format.open_memmap(folder / _ROWS, "w+", np.int32, shape)
    kept = np.lib.format.open_memmap(folder / _WEIGHTS, "w+", np.float32, shape)
    free, first = starts[:-1].copy(), 0
    for words, weights, lengths in read():
        owners = np.repeat(np.arange(first, first + len(lengths)), lengths)
        order = np.argsort(words, kind="stable")
        ordered = words[order]
        here = np.bincount(words, minlength=dims)
        places = free[ordered] + np.arange(len(ordered)) - (np.cumsum(here) - here)[ordered]
        rows[places], kept[places] = owners[order], weights[order]
        free += here
        first += len(lengths)
    rows.flush()
    kept.flush()
    np.save(folder / _STARTS, np.append(starts, total))


class InvertedIndex:
    """The rows of each word."""

    def __init__(self, folder: Path) -> None:
        *starts, self.rows = np.load(folder / _STARTS).tolist()
        self._starts = np.array(starts)
        self._rows = np.load(folder / _ROWS, mmap_mode="r")
        self._weights = np.load(folder / _WEIGHTS, mmap_mode="r")

    @property
    def dims(self) -> int:
        return len(self._starts) - 1

    def search(
        self,
        queries: Sequence[SparseQuery],
        k: int,
        items: NDArray[np.int64] | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> list[Best]:
        """Rows and dot products of the k best of each query, at most one per item; none without a common word."""
        return [self._rank(query, k, items, allowed) for query in queries]

    def _rank(
        self, query: SparseQuery, k: int, items: NDArray[np.int64] | None, allowed: NDArray[np.bool_] | None
    ) -> Best:
        scores = np.zeros(self.rows)
        for word, weight in zip(*query, strict=True):
            own = slice(self._starts[word], self._starts[word + 1])
            scores[self._rows[own]] += np.float64(weight) * self._weights[own]
        if allowed is not None:
            scores[~allowed] = 0
        found = np.flatnonzero(scores > 0)
        return join_best(NOTHING, (found, scores[found].astype(np.float32)), k, items)
