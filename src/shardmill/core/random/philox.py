"""Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3), over arrays of counters."""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import UsageError

Words = NDArray[np.uint64]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF

_SHIFT, _LOW = np.uint64(32), np.uint64(LOW)
_MULTIPLIERS = np.array(MULTIPLIERS, np.uint64).reshape(2, 1)


class PhiloxKey(NamedTuple):
    """64 bits that represent a seed and a stream."""

    k0: int
    k1: int


@functools.lru_cache(maxsize=256)
def round_keys(key: PhiloxKey) -> list[tuple[int, int]]:
    return [((key.k0 + i * WEYL[0]) & LOW, (key.k1 + i * WEYL[1]) & LOW) for i in range(ROUNDS)]


@functools.lru_cache(maxsize=256)
def schedule(key: PhiloxKey) -> list[Words]:
    """The keys of each pair of rounds, in the layout of `fill`."""
    each = np.array(round_keys(key), np.uint64)
    return [(each[i] << _SHIFT | each[i + 1]).reshape(2, 1) for i in range(0, ROUNDS, 2)]


@functools.lru_cache(maxsize=256)
def make_key(seed: int, stream: str, view: int | None = None) -> PhiloxKey:
    """The key of a stream: a hash of seed, name and view, so that different combinations do not coincide.

    Different views give different numbers for the same item; without a view all callers get the same numbers.

    >>> make_key(0, "augment") == make_key(0, "augment", view=0)
    False
    """
    if not 0 <= seed < 1 << 64:
        raise UsageError(f"The seed {seed} is not a 64-bit integer.", hint="Choose one from 0 to 2**64 - 1.")
    text = f"shardmill\0{seed}\0{'' if view is None else view}\0{stream}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return PhiloxKey(int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little"))


def check_ids(ids: Any) -> Words:
    """Item ids as an array of uint64; other values are rejected, never wrapped."""
    if isinstance(ids, range) and len(ids) and min(ids[0], ids[-1]) >= 0 and max(ids[0], ids[-1]) < 1 << 64:
        # uint64 wraps around, which makes negative steps correct.
        return np.arange(len(ids), dtype=np.uint64) * np.uint64(ids.step % (1 << 64)) + np.uint64(ids[0])
    array = np.asarray(ids)
    if array.dtype == np.uint64:
        return array
    if array.size == 0:
        return array.astype(np.uint64)
    if array.dtype.kind not in "iuO" or (array.dtype.kind == "O" and not all(isinstance(i, int) for i in array.flat)):
        raise UsageError(f"Item ids must be integers, not {array.dtype}.", hint="Number the items from 0.")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= 1 << 64:
        wrong = low if low < 0 else high
        raise UsageError(f"The item id {wrong} is not from 0 to 2**64 - 1.", hint="Number the items from 0.")
    return array.astype(np.uint64)


def check_counter(epoch: int, block: int = 0) -> None:
    for name, value in (("epoch", epoch), ("block", block)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= LOW:
            raise UsageError(f"The {name} {value!r} is not from 0 to 2**32 - 1.", hint=f"Count {name}s from 0.")


def philox(counter: tuple[Any, Any, Any, Any], key: PhiloxKey) -> tuple[Any, Any, Any, Any]:
    """One block per counter, in plain arithmetic on Python integers, NumPy uint64 or torch int64."""
    c0, c1, c2, c3 = counter
    for k0, k1 in round_keys(key):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        # The mask after the shift is for torch, whose int64 shift keeps the sign.
        c0, c1, c2, c3 = ((p1 >> 32) & LOW) ^ c1 ^ k0, p1 & LOW, ((p0 >> 32) & LOW) ^ c3 ^ k1, p0 & LOW
    return c0, c1, c2, c3


def words(ids: Words, key: PhiloxKey, epoch: int = 0, block: int = 0) -> Words:
    """The blocks of some items as two rows of uint64: the first two words of each block, and the last two.

    This is a fast `philox`. A row holds (c0, c1) or (c2, c3) with the even word in the upper half. A round is then a
    right shift, a multiplication, a left shift and an xor of whole rows. Every other round also xors the keys of two
    rounds at once: the lower half is used one round later, so it can take its key early.
    """
    check_counter(epoch, block)
    rows = np.empty((2, len(ids)), np.uint64)
    products = np.empty_like(rows)
    if len(ids):
        fill(ids, key, epoch, block, rows, products)
    return rows


def fill(ids: Words, key: PhiloxKey, epoch: int, block: int, rows: Words, products: Words) -> None:
    """Write the blocks into `rows`; `products` is a work buffer."""
    keys = schedule(key)
    high = ids[0] >> _SHIFT
    if high == ids[-1] >> _SHIFT and bool((np.right_shift(ids, _SHIFT, out=rows[0]) == high).all()):
        _first_two(ids, int(high), epoch, block, keys[0], rows, products)
        begin = 2
    else:
        np.right_shift(ids, _SHIFT, out=rows[0])
        np.bitwise_or(rows[0], np.left_shift(ids, _SHIFT, out=rows[1]), out=rows[0])
        rows[1] = epoch << 32 | block
        begin = 0
    crossed = products[::-1]
    for i in range(begin, ROUNDS):
        np.right_shift(rows, _SHIFT, out=products)
        np.multiply(products, _MULTIPLIERS, out=products)
        np.left_shift(rows, _SHIFT, out=rows)
        np.bitwise_xor(rows, crossed, out=rows)
        if i % 2 == 0:
            np.bitwise_xor(rows, keys[i // 2], out=rows)


def _first_two(ids: Words, high: int, epoch: int, block: int, keys: Words, rows: Words, products: Words) -> None:
    """The first two rounds for ids with the same upper half: three words of the counter are then constant."""
    first = epoch * MULTIPLIERS[1] ^ high << 32 ^ int(keys[0, 0])
    np.bitwise_and(ids, _LOW, out=rows[1])
    np.multiply(rows[1], _MULTIPLIERS[0], out=rows[1])
    np.bitwise_xor(rows[1], np.uint64(block << 32 ^ int(keys[1, 0])), out=rows[1])
    np.right_shift(rows[1], _SHIFT, out=rows[0])
    np.multiply(rows[0], _MULTIPLIERS[1], out=rows[0])
    np.bitwise_xor(rows[0], np.uint64((first & LOW) << 32), out=rows[0])
    np.left_shift(rows[1], _SHIFT, out=rows[1])
    np.bitwise_xor(rows[1], np.uint64((first >> 32) * MULTIPLIERS[0]), out=rows[1])
