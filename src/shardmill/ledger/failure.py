"""Rows that failed, and rows that are suspected of crashing workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_object, read_record
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import Claim, Commit, Suspects, encode
from shardmill.store import Store

_NUMBERS = ("line_in_shard", "row_in_shard", "shard")


class ErrorRecords:
    """Keeps, per attempt at a shard, the list of rows it set aside; a commit names the list that counts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, claim: Claim, lines: bytes) -> str:
        """Write an attempt's list and return its key."""
        key = f"errors/{claim.shard:06d}.{claim.attempt}.jsonl"
        self._store.put(key, lines)
        return key

    def read(self, commit: Commit) -> Iterator[dict[str, Any]]:
        if commit.errors_file:
            yield from self.parse(commit, self._store.get(commit.errors_file))

    def parse(self, commit: Commit, lines: bytes) -> Iterator[dict[str, Any]]:
        """The records in the list that a commit names."""
        for line in lines.splitlines():
            yield _parse(line, f"{self._store.url}/{commit.errors_file}")


def _parse(line: bytes, place: str) -> dict[str, Any]:
    record = read_object(line, place)
    if not all(type(number := record.get(name)) is int and 0 <= number < 1 << 63 for name in _NUMBERS):
        raise CorruptState(f"{place} is damaged: a record without {' or '.join(_NUMBERS)}.")
    return {**dict.fromkeys(("file", "reason"), ""), **record}


class SuspectRecords:
    """Keeps the suspects of each shard."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._store = folder, folder.store

    def get(self, shard: int) -> Suspects:
        try:
            key = self._folder.key("suspects", shard)
            return read_record(Suspects, self._store.get(key), key)
        except (FileNotFoundError, CorruptState):
            return Suspects()

    def read(self) -> list[Suspects]:
        """The suspects of all shards that have some."""
        return self._folder.ask_each(self.get, list(self._folder.shards("suspects")))

    def put(self, shard: int, suspects: Suspects) -> None:
        self._store.put(self._folder.key("suspects", shard), encode(suspects))

    def delete(self, shard: int) -> None:
        self._store.delete(self._folder.key("suspects", shard))
