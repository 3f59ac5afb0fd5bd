"""Rows that an attempt has finished before its shard is. A hint: a later attempt goes on after them, or does not.

A piece is one object: the digest of all that follows, a line of counts and failed rows, and the rows as the sink wrote
them. Its name has the rows, so that a chain from the first row on is found in one listing.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_record
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import KeptRows, encode

KIND = "kept"
_DIGEST_BYTES = 64


class KeptName(NamedTuple):
    """The rows that a piece has by its name; its content may say otherwise."""

    first_row: int
    stop: int
    key: str


class KeptRecords:
    """Keeps pieces of shards, by generation, rows and attempt; none is ever overwritten."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._store = folder, folder.store

    def add(self, piece: KeptRows, attempt: str, data: bytes) -> str:
        """Write a piece and return its key."""
        key = f"{self._start(piece.shard)}.{piece.first_row:09d}.{piece.stop:09d}.{attempt}"
        body = encode(piece) + b"\n" + data
        self._store.put_if_absent(key, hashlib.sha256(body).hexdigest().encode() + body)
        return key

    def find(self, shard: int) -> list[KeptName]:
        """The pieces of a shard by name, in one request: the store lists them first."""
        start = self._start(shard)
        pattern = re.compile(re.escape(start) + r"\.(\d{9,18})\.(\d{9,18})\.[A-Za-z0-9._-]+")
        found = []
        for entry in self._store.list(f"{KIND}/", start):
            if not entry.key.startswith(f"{start}."):
                break
            if match := pattern.fullmatch(entry.key):
                found.append(KeptName(int(match[1]), int(match[2]), entry.key))
        return [name for name in found if name.first_row < name.stop]

    def read(self, name: KeptName, shard: int, plan: str) -> tuple[KeptRows, bytes] | None:
        """A piece and its rows; None if it is gone, damaged, or not what its name says."""
        with contextlib.suppress(FileNotFoundError, CorruptState):
            content = self._store.get(name.key)
            body = memoryview(content)[_DIGEST_BYTES:]
            if hashlib.sha256(body).hexdigest().encode() != content[:_DIGEST_BYTES]:
                return None
            head, _, data = content[_DIGEST_BYTES:].partition(b"\n")
            piece = read_record(KeptRows, head, name.key)
            seen = (piece.shard, piece.plan, piece.first_row, piece.stop)
            return (piece, data) if seen == (shard, plan, name.first_row, name.stop) else None
        return None

    def delete(self, keys: Iterable[str]) -> None:
        self._store.delete_all(keys)

    def _start(self, shard: int) -> str:
        return f"{KIND}/{shard:06d}.{self._folder.known_generation()}"


def next_kept(names: Sequence[KeptName], row: int) -> KeptName | None:
    """The piece from this row on with which the longest chain begins; attempts cut a shard at different rows.

    >>> names = [KeptName(0, 5, "a"), KeptName(0, 3, "b"), KeptName(3, 9, "c")]
    >>> next_kept(names, 0).key, next_kept(names, 3).key, next_kept(names, 9)
    ('b', 'c', None)
    """
    ends: dict[int, int] = {}
    best: KeptName | None = None
    for name in sorted(names, reverse=True):
        end = ends.get(name.stop, name.stop)
        if name.first_row == row and (best is None or end > ends[row]):
            best = name
        ends[name.first_row] = max(end, ends.get(name.first_row, 0))
    return best
