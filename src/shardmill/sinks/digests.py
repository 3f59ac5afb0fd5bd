"""Digests of what a row is made from, by which `--changed-only` tells whether a row must be made anew, and hashes of
items and rows, whose sums a commit keeps as the proof of what was read and made."""

from __future__ import annotations

import hashlib
import json
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.hashing import Hashes, bind, hash_column, hash_rows, mix
from shardmill.sinks.parquet import restore_missing

# The column of a table with the digest of what a row is made from.
TEXT_DIGEST = pa.field("text_digest", pa.binary())
_BYTES = 16
_NO_FIELDS = b"null"


def digest_items(texts: pa.Array, fields: pa.RecordBatch | None = None, salt: bytes = b"") -> pa.Array:
    """A digest of each item: of its text, the task's own fields and the salt. Null for an item without a text.

    >>> digest_items(pa.array(["a", None])).to_pylist() == [hashlib.sha256(b"a").digest()[:16], None]
    True
    """
    contents = texts.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    if fields is not None or salt:
        ends = repeat(_NO_FIELDS) if fields is None else map(_encode, fields.to_pylist())
        pairs = zip(contents, ends, strict=False)
        contents = [None if c is None else b"".join((salt, len(c).to_bytes(8, "big"), c, end)) for c, end in pairs]
    digests = [None if content is None else hashlib.sha256(content).digest()[:_BYTES] for content in contents]
    return pa.array(digests, pa.binary(_BYTES)).cast(pa.binary())


def hash_kept(kept: pa.RecordBatch) -> Hashes:
    """A hash of the id and kept columns of each item. A missing vector is stored as one of NaN: they are the same."""
    return hash_rows(restore_missing(kept, marked=False))


def hash_items(texts: pa.Array, kept_hashes: Hashes, first: int, taken: NDArray[np.bool_] | None = None) -> Hashes:
    """A hash of each item: of its place in the shard, its text as given, its id and its kept columns.

    That of an item that is not `taken` is 0, which adds nothing to a digest.
    """
    return place_items(hash_items_anywhere(texts, kept_hashes), first, taken)


def hash_items_anywhere(texts: pa.Array, kept_hashes: Hashes) -> Hashes:
    """A hash of each item wherever it is: of its text as given, its id and its kept columns."""
    return mix(kept_hashes * np.uint64(31) + hash_column(texts))


def place_items(contents: Hashes, first: int, taken: NDArray[np.bool_] | None = None) -> Hashes:
    """The hashes of consecutive items, each at its place."""
    hashes = bind(contents, np.arange(first, first + len(contents)))
    if taken is not None:
        hashes[~taken] = 0
    return hashes


def hash_made(
    made: pa.RecordBatch, kept_hashes: Hashes, items: NDArray[np.int64], numbers: NDArray[np.int64]
) -> Hashes:
    """A hash of each row of a result: of its item's place and kept columns, its number in the item, and its content."""
    return place_rows(hash_contents(made, kept_hashes), items, numbers)


def hash_contents(made: pa.RecordBatch, kept_hashes: Hashes) -> Hashes:
    """A hash of each row of a result wherever it is: of its kept columns and of what the task made."""
    return mix(kept_hashes * np.uint64(31) + hash_rows(restore_missing(made, marked=False)))


def place_rows(contents: Hashes, items: NDArray[np.int64], numbers: NDArray[np.int64]) -> Hashes:
    """The hashes of rows, each at the place of its item and with its number in the item."""
    return bind(bind(contents, numbers), items)


def _encode(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
