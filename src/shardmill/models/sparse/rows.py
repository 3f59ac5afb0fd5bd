"""Sparse rows: for each text the numbers of words, ascending, and their weights, which are above 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.models.networks.stored import Reals


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """Row `i` has the words `words[starts[i]:starts[i + 1]]`, and their `weights`."""

    words: NDArray[np.int32]
    weights: Reals
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, dense: Reals) -> SparseRows:
        """The words whose weight is not 0; NaN stays."""
        rows, words = np.nonzero(dense)
        return cls.counted(words, dense[rows, words], np.bincount(rows, minlength=len(dense)))

    @classmethod
    def counted(cls, words: NDArray[np.int64], weights: Reals, counts: NDArray[np.int64]) -> SparseRows:
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(words.astype(np.int32), weights.astype(np.float32, copy=False), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, at: int) -> tuple[NDArray[np.int32], Reals]:
        """The words of a row and their weights."""
        own = slice(self.starts[at], self.starts[at + 1])
        return self.words[own], self.weights[own]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def not_finite(self) -> list[int]:
        """The rows that have NaN or infinity."""
        owners = np.repeat(np.arange(len(self)), self.lengths)
        found: list[int] = np.unique(owners[~np.isfinite(self.weights)]).tolist()
        return found

    def heaviest(self, most: int) -> SparseRows:
        """The same rows with at most `most` words each: those with the largest weights, of equal ones the first."""
        lengths = self.lengths
        if not len(lengths) or lengths.max() <= most:
            return self
        owners = np.repeat(np.arange(len(self)), lengths)
        order = np.lexsort((self.words, -self.weights, owners))
        rank = np.arange(len(order)) - np.repeat(self.starts[:-1], lengths)
        kept = np.sort(order[rank < most])
        return self.counted(self.words[kept].astype(np.int64), self.weights[kept], np.minimum(lengths, most))

    def replaced(self, places: Sequence[int], others: SparseRows) -> SparseRows:
        """The same rows, but `others` at these places."""
        if not places:
            return self
        new = dict(zip(places, range(len(others)), strict=True))
        rows = [others.row(new[i]) if i in new else self.row(i) for i in range(len(self))]
        counts = np.array([len(words) for words, _ in rows], np.int64)
        return self.counted(
            np.concatenate([words for words, _ in rows]).astype(np.int64),
            np.concatenate([weights for _, weights in rows]),
            counts,
        )
