"""Digests of what a row is made from, by which `--changed-only` tells whether a row must be made anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

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
