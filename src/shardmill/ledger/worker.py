"""Heartbeats of workers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from shardmill.ledger.folder import Folder
from shardmill.ledger.process import process_alive
from shardmill.ledger.record import encode


def is_vanished(beat: Mapping[str, Any]) -> bool:
    """Whether the worker of a heartbeat is known to be gone; version 0.1.0 names its process by host and pid alone."""
    return process_alive(beat.get("process") or beat["host"], beat["pid"]) is False


# Heartbeats are at most 10 s apart.
_LATE_S = 30.0
ENDED = ("done", "stopped", "failed")


def is_live(beat: Mapping[str, Any], now: float) -> bool:
    """Whether the worker of a heartbeat works: the heartbeat is recent and, on this host, the process exists."""
    return now - beat["at"] < _LATE_S and beat["state"] not in ENDED and not is_vanished(beat)


def was_told_to_stop(beat: Mapping[str, Any]) -> bool:
    """Whether a worker ended, or is about to, because it was told to: by a signal, a stopped run, a lost parent."""
    return beat.get("state") == "stopped" or bool(beat.get("told_to_stop"))


def idle_s(beat: Mapping[str, Any], now: float) -> float:
    """Seconds since a worker's last heartbeat or, while it is busy, since its last progress if that is longer ago."""
    silent_s, still_s = now - beat["at"], now - beat["progress_at"]
    busy = beat["state"] in ("starting", "loading") or beat.get("open")
    return float(max(silent_s, still_s) if busy else silent_s)


class WorkerRecords:
    """Keeps the last heartbeat of each worker."""

    def __init__(self, folder: Folder, clock: Callable[[], float]) -> None:
        self._folder, self._store, self._clock = folder, folder.store, clock

    def beat(self, worker: str, state: dict[str, Any]) -> None:
        self._store.put(_key(worker), encode({"id": worker, "at": self._clock(), **state}))

    def excuse(self, worker: str) -> None:
        """Record that a worker which cannot say so itself ended because it was told to."""
        if (record := self.find(worker)) is not None:
            self._store.put(_key(worker), encode({**record, "state": "stopped"}))

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
        try:
            return dict(json.loads(self._store.get(key)))
        except (FileNotFoundError, ValueError):
            return None


def _key(worker: str) -> str:
    return f"workers/{worker}.json"
