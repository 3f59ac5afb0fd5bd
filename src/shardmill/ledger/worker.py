"""Heartbeats of workers, and roll-ups of those that ended long ago."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_object
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
_TIMES = ("at", "started", "began", "progress_at", "idle_s")
_NUMBERS = (*_TIMES, "pid", "rows", "commits", "rows_per_s", "bytes_per_s", "tokens_per_s", "bytes", "rss_bytes")
# What a heartbeat may lack, as version 0.1.0 does: None then.
_MEASURED = ("use", "device_bytes")
# What others read of a heartbeat.
_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("id", "host", "state", "device"), ""),
    **dict.fromkeys(_NUMBERS, 0),
    "notes": [],
    "open": {},
    "share": 1.0,
    "cores": 0,
    "sink_wait_s": 0.0,
}


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


def got_on(beat: Mapping[str, Any]) -> bool:
    """Whether a worker has got on with the run: committed a shard, or kept a checkpoint."""
    return bool(beat.get("commits") or beat.get("checkpoints"))


def idle_s(beat: Mapping[str, Any], now: float) -> float:
    """Seconds since a worker's last heartbeat or, while it is busy, since its last progress if that is longer ago."""
    silent_s, still_s = now - beat["at"], now - beat["progress_at"]
    busy = beat["state"] in ("starting", "loading") or beat.get("open")
    return float(max(silent_s, still_s) if busy else silent_s)


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

    def excuse(self, worker: str) -> None:
        """Record that a worker which cannot say so itself ended because it was told to."""
        if (record := self.find(worker)) is not None:
            self._store.put(_key(worker), encode({**record, "state": "stopped"}))

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
            records = content.get("workers")
            found = map(complete_beat, records if isinstance(records, list) else ())
            _keep_latest(self._rolled, [beat for beat in found if beat is not None])

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
        """A heartbeat; None if it is gone or damaged."""
        try:
            return complete_beat(read_object(self._store.get(key), key))
        except (FileNotFoundError, CorruptState):
            return None


def complete_beat(found: Any) -> dict[str, Any] | None:
    """A heartbeat, completed if it has not all values; None if it is nonsense."""
    known = found.items() if isinstance(found, dict) else ()
    beat = {**_NOTHING, **{name: value for name, value in known if value is not None or name not in _NOTHING}}
    sound = isinstance(found, dict) and all(_is_like(beat[name], usual) for name, usual in _NOTHING.items())
    for name in _MEASURED:
        beat[name] = beat.get(name) if _is_like(beat.get(name), 0) else None
    stages = beat.get("timings")
    if not isinstance(stages, dict) or not all(_is_like(seconds, 0) for seconds in stages.values()):
        beat["timings"] = None
    return beat if sound else None


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


def _keep_latest(by_key: dict[str, dict[str, Any]], records: Iterable[dict[str, Any]]) -> None:
    for record in records:
        key = _key(record["id"])
        if key not in by_key or by_key[key]["at"] <= record["at"]:
            by_key[key] = record


def _key(worker: str) -> str:
    return f"workers/{worker}.json"
