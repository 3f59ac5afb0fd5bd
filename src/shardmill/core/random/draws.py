"""Turns bits into numbers in [0, 1) without loss or rounding."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import UsageError
from shardmill.core.random.philox import LOW, PhiloxKey, Words, check_counter, fill, philox, words

COARSE, FINE = 2.0**-24, 2.0**-53
SLOTS = 5
# A chunk of this many items stays in a core's cache.
CHUNK = 1 << 13

_8, _11, _16, _40 = (np.uint64(n) for n in (8, 11, 16, 40))
_BYTE, _TWO_BYTES, _THREE_BYTES = (np.uint64((1 << n) - 1) for n in (8, 16, 24))

Column = NDArray[np.float64]
_local = threading.local()


def _chunks(ids: Words, key: PhiloxKey, epoch: int, block: int) -> Iterator[tuple[slice, Words, Words]]:
    """The blocks of the items in chunks, and a buffer of the same size; the next chunk reuses both."""
    check_counter(epoch, block)
    if not hasattr(_local, "room"):
        _local.room = np.empty((2, 2, CHUNK), np.uint64)
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        rows, room = _local.room[..., : len(part)]
        fill(part, key, epoch, block, rows, room)
        yield slice(start, start + len(part)), rows, room[0]


def draw5(ids: Words, key: PhiloxKey, epoch: int = 0, block: int = 0, out: list[Column] | None = None) -> list[Column]:
    """Five draws per item of 24 bits, as integers below 2**24 in float64; times `COARSE` they are in [0, 1).

    Each half of a block gives two from its upper bits; the fifth is the last 16 bits of one half and the last 8 of the
    other.
    """
    columns = out or [np.empty(len(ids)) for _ in range(SLOTS)]
    for at, (first, second), room in _chunks(ids, key, epoch, block):
        for slot, half in ((0, first), (2, second)):
            columns[slot][at] = np.right_shift(half, _40, out=room)
            np.right_shift(half, _16, out=room)
            columns[slot + 1][at] = np.bitwise_and(room, _THREE_BYTES, out=room)
        np.bitwise_and(first, _TWO_BYTES, out=room)
        np.left_shift(room, _8, out=room)
        np.bitwise_and(second, _BYTE, out=second)
        columns[4][at] = np.bitwise_or(room, second, out=room)
    return columns


def draw5_of_one(item: int, key: PhiloxKey, epoch: int = 0, block: int = 0) -> tuple[int, int, int, int, int]:
    """`draw5` of a single item in Python integers, which is ten times as fast as arrays for one item."""
    w0, w1, w2, w3 = philox((item & LOW, item >> 32, epoch, block), key)
    return w0 >> 8, (w0 & 255) << 16 | w1 >> 16, w2 >> 8, (w2 & 255) << 16 | w3 >> 16, (w1 & 65535) << 8 | w3 & 255


def draw_fine(ids: Words, key: PhiloxKey, epoch: int = 0, block: int = 0) -> list[Column]:
    """Two draws per item of 53 bits, as integers below 2**53 in float64; times `FINE` they are in [0, 1)."""
    columns = [np.empty(len(ids)), np.empty(len(ids))]
    for at, rows, room in _chunks(ids, key, epoch, block):
        for column, half in zip(columns, rows, strict=True):
            column[at] = np.right_shift(half, _11, out=room)
    return columns


def permute(position: NDArray[np.int64], size: int, key: PhiloxKey, epoch: int = 0) -> NDArray[np.int64]:
    """The item at each position of an epoch's order: a permutation of range(size), computed and never stored.

    A Feistel network of six rounds over the next power of four, repeated until the value is below `size`.

    >>> sorted(permute(np.arange(10), 10, PhiloxKey(1, 2)).tolist()) == list(range(10))
    True
    """
    check_counter(epoch)
    if size < 1:
        raise UsageError(f"The size {size} is below 1.", hint="Give 1 or more.")
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    values = np.asarray(position).astype(np.uint64)
    if len(values) and (int(values.max()) >= size):
        raise UsageError(f"The position {int(values.max())} is not below {size}.", hint="Positions start at 0.")
    open_ = np.arange(len(values))
    while len(open_):
        now = values[open_]
        left, right = now >> np.uint64(half), now & np.uint64(mask)
        for turn in range(6):
            mixed = words(right | np.uint64(turn << 32), key, epoch)[0] >> np.uint64(32)
            left, right = right, (left ^ mixed) & np.uint64(mask)
        values[open_] = (left << np.uint64(half)) | right
        open_ = open_[values[open_] >= size]
    return values.astype(np.int64)
