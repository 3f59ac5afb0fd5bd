"""Short byte strings -> numbers: a hash table in NumPy arrays, in which a whole block of texts is looked up at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Lanes = Sequence[NDArray[np.uint64]]

_LANE = 8
_FREE = -1
_FIRST_SLOTS = 1 << 12
_EVERY_BIT = np.uint64(2**64 - 1)
# Odd numbers that spread the bits of a key: the golden ratio and another that is as irregular.
_SPREAD, _STIR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


class WordKeys:
    """Cuts keys out of a buffer of UTF-8.

    A key is the bytes of a word, filled up with 0xFF, which no UTF-8 contains, so different words have different keys.
    A word of no bytes, or one that is too long, has the key of the empty word.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes, self.longest = lanes, lanes * _LANE
        # For lane j and length n: the bits of the bytes that the word does not have.
        self._filling = np.full((lanes, self.longest + 2), _EVERY_BIT, np.uint64)
        for lane in range(lanes):
            for length in range(1, self.longest + 1):
                own = min(_LANE, max(0, length - lane * _LANE))
                self._filling[lane, length] = np.uint64((2**64 - 1) ^ ((1 << 8 * own) - 1))

    def cut(self, padded: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Lanes:
        """The keys of words that begin at `begins`; `padded` goes on for `longest` bytes after the last of them."""
        at_each_byte = np.ndarray((len(padded) - _LANE + 1,), "<u8", padded, strides=(1,))
        known = np.minimum(lengths, self.longest + 1)
        return [at_each_byte[begins + lane * _LANE] | self._filling[lane][known] for lane in range(self.lanes)]


class WordTable:
    """Keys of `lanes` numbers of 64 bits each, and the number of each key. Open addressing, at most half full."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._make(_FIRST_SLOTS)

    def _make(self, slots: int) -> None:
        self._used, self._mask = 0, slots - 1
        self._shift = np.uint64(64 - slots.bit_length() + 1)
        self._keys = [np.zeros(slots, np.uint64) for _ in range(self._lanes)]
        self._rows = np.full(slots, _FREE, np.int64)

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return self._rows.nbytes * (self._lanes + 1)

    def find(self, keys: Lanes) -> NDArray[np.int64]:
        """The number of each key; -1 for one that is unknown."""
        slots = self._slots(keys)
        rows = self._rows[slots]
        wrong = self._differ(slots, keys)
        rest = np.flatnonzero(wrong & (rows != _FREE))
        while len(rest):
            slots[rest] = (slots[rest] + 1) & self._mask
            at = slots[rest]
            rows[rest] = self._rows[at]
            wrong = self._differ(at, [lane[rest] for lane in keys])
            rest = rest[wrong & (rows[rest] != _FREE)]
        return rows

    def add(self, keys: Lanes, rows: NDArray[np.int64]) -> None:
        """Give keys, which are distinct and unknown, their numbers."""
        if 2 * (self._used + len(rows)) > len(self._rows):
            taken = np.flatnonzero(self._rows != _FREE)
            old_keys, old_rows = [lane[taken] for lane in self._keys], self._rows[taken]
            self._make(1 << (2 * (self._used + len(rows))).bit_length())
            self._put(old_keys, old_rows)
        self._put(keys, rows)

    def _put(self, keys: Lanes, rows: NDArray[np.int64]) -> None:
        slots, rest = self._slots(keys), np.arange(len(rows))
        self._used += len(rows)
        while len(rest):
            free = rest[self._rows[slots[rest]] == _FREE]
            # Of several that want the same slot, one gets it.
            taken, first = np.unique(slots[free], return_index=True)
            got = free[first]
            self._rows[taken] = rows[got]
            for own, lane in zip(self._keys, keys, strict=True):
                own[taken] = lane[got]
            rest = np.setdiff1d(rest, got, assume_unique=True)
            slots[rest] = (slots[rest] + 1) & self._mask

    def _slots(self, keys: Lanes) -> NDArray[np.int64]:
        mixed = keys[0] * _SPREAD
        for lane in keys[1:]:
            mixed = (mixed ^ lane ^ (mixed >> np.uint64(29))) * _STIR
        mixed ^= mixed >> np.uint64(32)
        return (mixed * _SPREAD >> self._shift).astype(np.int64)

    def _differ(self, slots: NDArray[np.int64], keys: Lanes) -> NDArray[np.bool_]:
        differ: NDArray[np.bool_] = self._keys[0][slots] != keys[0]
        for own, lane in zip(self._keys[1:], keys[1:], strict=True):
            differ |= own[slots] != lane
        return differ
