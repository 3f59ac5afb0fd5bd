"""Heartbeats of workers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from shardmill.errors import CorruptState
from shardmill.ledger.folder import Folder
from shardmill.ledger.process import process_alive
from shardmill.ledger.record import encode
from shardmill.records import read_object

_NUMBERS = ("at", "pid", "rows", "rows_per_s", "bytes_per_s", "tokens_per_s", "began", "progress_at", "idle_s")
# What others read of a heartbeat.
_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("id", "host", "state", "device"), ""),
    **dict.fromkeys(_NUMBERS, 0),
    "notes": [],
    "open": {},
    "share": 1.0,
    "sink_wait_s": 0.0,
}


def is_vanished(beat: Mapping[str, Any]) -> bool:
    """Whether the worker of a heartbeat is known to be gone; version 0.1.0 names its process by host and pid alone."""
    return process_alive(beat.get("process") or beat["host"], beat["pid"]) is False


class WorkerRecords:
    """Keeps the last heartbeat of each worker."""

    def __init__(self, folder: Folder, clock: Callable[[], float]) -> None:
        self._folder, self._store, self._clock = folder, folder.store, clock

    def beat(self, worker: str, state: dict[str, Any]) -> None:
        self._store.put(_key(worker), encode({"id": worker, "at": self._clock(), **state}))

    def read(self) -> list[dict[str, Any]]:
        """The last record of each worker."""
        return self.sample(None)[0]

    def find(self, worker: str) -> dict[str, Any] | None:
        """The last record of one worker."""
        return self._read(_key(worker))

    def sample(self, most: int | None) -> tuple[list[dict[str, Any]], float]:
        """The last records of some workers, and how many workers each of them represents."""
        entries = list(self._store.list("workers/"))
        asked = entries if most is None or len(entries) <= most else random.sample(entries, most)
        found = self._folder.ask_each(self._read, [entry.key for entry in asked])
        return [worker for worker in found if worker is not None], len(entries) / max(1, len(asked))

    def _read(self, key: str) -> dict[str, Any] | None:
        """A heartbeat, completed if it has not all values; None if it is gone or damaged."""
        try:
            found = read_object(self._store.get(key), key)
        except (FileNotFoundError, CorruptState):
            return None
        beat = {**_NOTHING, **found}
        return beat if all(_is_like(beat[name], usual) for name, usual in _NOTHING.items()) else None


def _is_like(value: Any, usual: Any) -> bool:
    """Whether a value has the type of the usual one: numbers are finite, shards under way have their numbers."""
    if isinstance(usual, int | float):
        return type(value) in (int, float) and math.isfinite(value)
    if isinstance(usual, dict):
        return isinstance(value, dict) and all(
            key.isdecimal() and isinstance(shard, dict) and all(_is_like(shard.get(n), 0) for n in ("rows", "bytes"))
            for key, shard in value.items()
        )
    return isinstance(value, type(usual))


def _key(worker: str) -> str:
    return f"workers/{worker}.json"
