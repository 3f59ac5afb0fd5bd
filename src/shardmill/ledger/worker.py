"""Heartbeats of workers, and roll-ups of those that ended long ago."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shardmill.ledger.folder import Folder
from shardmill.ledger.process import process_alive
from shardmill.ledger.record import encode
from shardmill.ledger.segment import Series

# The age at which a record is rolled up: of a worker that ended well, and of one that failed or fell silent.
_ENDED_WELL = ("done", "stopped")
_OLD_S, _OLD_FAILURE_S = 3600.0, 86400.0
# Fewer records are not worth an object, more would make a large one.
_ROLLED = (100, 1000)
# One worker in this number rolls up records when it starts.
_ROLLS = 100


def is_vanished(beat: Mapping[str, Any]) -> bool:
    """Whether the worker of a heartbeat is known to be gone; version 0.1.0 names its process by host and pid alone."""
    return process_alive(beat.get("process") or beat["host"], beat["pid"]) is False


class WorkerRecords:
    """Keeps the last heartbeat of each worker: in an object of its own, and later in one with many others."""

    def __init__(self, folder: Folder, clock: Callable[[], float]) -> None:
        self._folder, self._store, self._clock = folder, folder.store, clock
        self._series = Series(folder, "rolled")
        self._rolled: dict[str, dict[str, Any]] = {}

    def reset(self) -> None:
        """Forget what was read."""
        self._series.reset()
        self._rolled.clear()

    def beat(self, worker: str, state: dict[str, Any]) -> None:
        self._store.put(_key(worker), encode({"id": worker, "at": self._clock(), **state}))

    def read(self) -> list[dict[str, Any]]:
        """The last record of each worker.

        Roll-ups are read last: a record that is moved meanwhile is in one before its own object is deleted.
        """
        recent = self.read_recent()
        self._read_rolled()
        latest = dict(self._rolled)
        _keep_latest(latest, recent)
        return [latest[key] for key in sorted(latest)]

    def read_recent(self) -> list[dict[str, Any]]:
        """The last records of the workers that may be alive, and of those that ended lately."""
        return self.sample(None)[0]

    def is_turn(self) -> bool:
        """Whether a worker that has just started rolls up records too."""
        return random.randrange(_ROLLS) == 0

    def roll_up(self) -> None:
        """Move the records of workers that ended long ago into a few objects.

        Each is deleted once it was written there. Until then it is in both, and counts once.
        """
        least, most = _ROLLED
        old = {_key(record["id"]): record for record in self.read_recent() if self._is_old(record)}
        if len(old) < least:
            return
        self._read_rolled()
        new = [record for key, record in old.items() if self._rolled.get(key) != record]
        for some in (new[first : first + most] for first in range(0, len(new), most)):
            if not self._series.add({"workers": some}):
                return
            _keep_latest(self._rolled, some)
        self._store.delete_all(old)

    def _read_rolled(self) -> None:
        for content in self._series.read_new():
            _keep_latest(self._rolled, content.get("workers", []))

    def _is_old(self, record: Mapping[str, Any]) -> bool:
        return bool(self._clock() - record["at"] > (_OLD_S if record.get("state") in _ENDED_WELL else _OLD_FAILURE_S))

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
        try:
            return dict(json.loads(self._store.get(key)))
        except (FileNotFoundError, ValueError):
            return None


def _keep_latest(by_key: dict[str, dict[str, Any]], records: Iterable[dict[str, Any]]) -> None:
    for record in records:
        key = _key(record["id"])
        if key not in by_key or by_key[key]["at"] <= record["at"]:
            by_key[key] = record


def _key(worker: str) -> str:
    return f"workers/{worker}.json"
