"""Digests of what a row is made from, by which `--changed-only` tells whether a row must be made anew, and hashes of
items and rows, whose sums a commit keeps as the proof of what was read and made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.hashing import Hashes, bind, hash_column, hash_rows, mix
from shardmill.sinks.parquet import restore_missing

# The column of a table with the digest of what a row is made from.
TEXT_DIGEST = pa.field("text_digest", pa.binary())
_BYTES = 16
# Where a model is and how it is reached. Which model it is, the task's fingerprint says.
_PLACES = ("model", "endpoint", "key_variable")


def digest_items(texts: Sequence[str | None], fields: pa.RecordBatch | None = None, salt: bytes = b"") -> pa.Array:
    """A digest of each item: of its text, the task's own fields and the salt. Null for an item without a text.

    >>> digest_items(["a", None]).to_pylist() == [hashlib.sha256(b"a").digest()[:16], None]
    True
    """
    rows = [None] * len(texts) if fields is None else fields.to_pylist()
    digests = [None if t is None else _digest(t, row, salt) for t, row in zip(texts, rows, strict=True)]
    return pa.array(digests, pa.binary())


def hash_kept(kept: pa.RecordBatch) -> Hashes:
    """A hash of the id and kept columns of each item. A missing vector is stored as one of NaN: they are the same."""
    return hash_rows(restore_missing(kept, marked=False))


def hash_items(texts: pa.Array, kept_hashes: Hashes, first: int, taken: NDArray[np.bool_] | None = None) -> Hashes:
    """A hash of each item: of its place in the shard, its text as given, its id and its kept columns.

    That of an item that is not `taken` is 0, which adds nothing to a digest.
    """
    content = mix(kept_hashes * np.uint64(31) + hash_column(texts))
    hashes = bind(content, np.arange(first, first + len(texts)))
    if taken is not None:
        hashes[~taken] = 0
    return hashes


def hash_made(
    made: pa.RecordBatch, kept_hashes: Hashes, items: NDArray[np.int64], numbers: NDArray[np.int64]
) -> Hashes:
    """A hash of each row of a result: of its item's place and kept columns, its number in the item, and its content."""
    content = mix(kept_hashes * np.uint64(31) + hash_rows(restore_missing(made, marked=False)))
    return bind(bind(content, numbers), items)


def make_salt(task: str, params: Mapping[str, Any], fingerprint: Mapping[str, str]) -> bytes:
    """What all rows of a task depend on besides their items: its parameters and its model."""
    own = {name: value for name, value in params.items() if name not in _PLACES}
    return hashlib.sha256(_encode([task, own, dict(fingerprint)])).digest()


def _digest(text: str, fields: dict[str, Any] | None, salt: bytes) -> bytes:
    content = text.encode()
    if fields is not None or salt:
        content = salt + len(content).to_bytes(8, "big") + content + _encode(fields)
    return hashlib.sha256(content).digest()[:_BYTES]


def _encode(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
