"""What each trial of a study tries: settled once, before the trial begins, and the same for every attempt at it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_record
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import encode

KIND = "trials"
_SENT = "trials.json"
_DAMAGED = "Restore it, or start the study over with --fresh."


@dataclass(frozen=True, slots=True)
class TrialStart:
    """The parameters of a trial, and when they were settled."""

    parameters: dict[str, Any]
    at: float


class TrialRecords:
    """Keeps one record per trial; the first one written holds. A branch also has the trials that home sent."""

    def __init__(self, folder: Folder, clock: Callable[[], float]) -> None:
        self._folder, self._store, self._clock = folder, folder.store, clock

    def settle(self, shard: int, parameters: dict[str, Any]) -> TrialStart:
        """Settle what a trial tries unless that is settled; returns what holds."""
        value = {"parameters": parameters, "at": self._clock()}
        self._store.put_if_absent(self._folder.key(KIND, shard), encode(value))
        return self.get(shard)

    def get(self, shard: int) -> TrialStart:
        """What a trial tries; FileNotFoundError if that is not settled."""
        key = self._folder.key(KIND, shard)
        return read_record(TrialStart, self._store.get(key), f"{self._store.url}/{key}", _DAMAGED)

    def find(self, shard: int) -> TrialStart | None:
        with contextlib.suppress(FileNotFoundError):
            return self.get(shard)
        return None

    def send(self, ended: Sequence[dict[str, Any]], starts: Mapping[int, dict[str, Any]]) -> None:
        """Leave in a branch the trials of the run that have ended, and what its own trials try."""
        self._store.put(_SENT, json.dumps(ended, separators=(",", ":")).encode())
        for shard, start in starts.items():
            self._store.put_if_absent(self._folder.key(KIND, shard), encode(start))

    def sent(self) -> list[dict[str, Any]]:
        """The finished trials that home sent, in order."""
        try:
            found = json.loads(self._store.get(_SENT))
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise CorruptState(f"{self._store.url}/{_SENT} is damaged: {error}.") from error
        return [dict(each) for each in found]
