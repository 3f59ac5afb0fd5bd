"""Rows of token ids of different lengths, stored back to back in one array instead of a list of lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import overload

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged(Sequence[Ids]):
    """Row `i` is `flat[starts[i]:starts[i + 1]]`; `starts` has one entry more than there are rows."""

    flat: Ids
    starts: NDArray[np.int64]

    @overload
    def __getitem__(self, row: int) -> Ids: ...
    @overload
    def __getitem__(self, row: slice) -> list[Ids]: ...
    def __getitem__(self, row: int | slice) -> Ids | list[Ids]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        at = row if row >= 0 else len(self) + row
        if not 0 <= at < len(self):
            raise IndexError(row)
        return self.flat[self.starts[at] : self.starts[at + 1]]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def take(self, firsts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Ragged:
        """New rows: row `i` is the `lengths[i]` ids of `flat` from `firsts[i]` on."""
        starts = starts_of(lengths)
        return Ragged(self.flat[np.arange(starts[-1]) + np.repeat(firsts - starts[:-1], lengths)], starts)

    def replace(self, rows: Sequence[int], others: Ragged) -> Ragged:
        """The same rows, but `others` at the places `rows`, which are in order."""
        lengths, at = self.lengths, np.array(rows, np.int64)
        every = Ragged(np.concatenate([self.flat, others.flat]), self.starts)
        firsts = self.starts[:-1].copy()
        firsts[at], lengths[at] = others.starts[:-1] + len(self.flat), others.lengths
        return every.take(firsts, lengths)

    def put_around(self, before: Sequence[int], after: Sequence[int], wanted: NDArray[np.bool_]) -> Ragged:
        """Add the ids `before` and `after` to each row marked in `wanted`."""
        if not before and not after:
            return self
        starts = starts_of(self.lengths + (len(before) + len(after)) * wanted)
        flat = np.empty(starts[-1], np.int32)
        body = np.ones(len(flat), bool)
        for special, at in ((before, starts[:-1]), (after, starts[1:] - len(after))):
            for offset, value in enumerate(special):
                flat[at[wanted] + offset] = value
                body[at[wanted] + offset] = False
        flat[body] = self.flat
        return Ragged(flat, starts)


def starts_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])


def ragged(rows: Iterable[Sequence[int]]) -> Ragged:
    kept = list(rows)
    starts = starts_of(np.array([len(row) for row in kept], np.int64))
    return Ragged(np.fromiter(chain.from_iterable(kept), np.int32, int(starts[-1])), starts)


def token_batches(lengths: NDArray[np.int64], budget: int) -> Iterator[NDArray[np.int64]]:
    """Cut rows, sorted by length, into batches whose padded size is at most `budget` tokens."""
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < len(order):
        count = max(1, budget // max(1, int(lengths[order[at]])))
        yield order[at : at + count]
        at += count
