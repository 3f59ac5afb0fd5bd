"""The history of a worker and of a run: a bounded number of points, coarser the longer it gets.

A heartbeat overwrites the one before it, so a worker also keeps what it did over time, in an object of its own. It is
written rarely, and no run depends on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.records import check_record, read_object
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import encode

MOST_POINTS = 120
_STEP_S = 5.0
_COUNTS = ("rows", "bytes", "tokens", "tokens_out")
_MEANS = ("memory_bytes", "device_bytes", "use")


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """What was done in the `seconds` up to `at`, and means of what was measured; None if it could not be measured.

    `memory_bytes` is the memory of the process, `device_bytes` that of the GPU in use by all, `use` the share of the
    time in which the device was busy.
    """

    at: float
    seconds: float
    rows: int = 0
    bytes: int = 0
    tokens: int = 0
    tokens_out: int = 0
    memory_bytes: float | None = None
    device_bytes: float | None = None
    use: float | None = None

    def joined(self, later: HistoryPoint) -> HistoryPoint:
        """Both as one: counts are added, means are weighed by time."""
        joined: dict[str, Any] = {name: getattr(self, name) + getattr(later, name) for name in _COUNTS}
        joined |= {name: self._mean(later, name) for name in _MEANS}
        return HistoryPoint(later.at, self.seconds + later.seconds, **joined)

    def _mean(self, later: HistoryPoint, name: str) -> float | None:
        known = [(value, each.seconds) for each in (self, later) if (value := getattr(each, name)) is not None]
        weight = sum(seconds for _, seconds in known)
        if not known:
            return None
        return float(sum(value * seconds for value, seconds in known) / weight if weight else known[-1][0])


class History:
    """Points in order. Each spans at least a step; when there are too many, pairs are joined and the step doubles."""

    def __init__(self, points: Iterable[HistoryPoint] = (), step_s: float = _STEP_S) -> None:
        self.points, self.step_s = list(points), step_s

    def add(self, point: HistoryPoint) -> None:
        if self.points and self.points[-1].seconds < self.step_s:
            point = self.points.pop().joined(point)
        self.points.append(point)
        if len(self.points) > MOST_POINTS:
            # A last one without a partner stays as it is: it is not full yet.
            pairs = zip(self.points[::2], self.points[1::2], strict=False)
            self.points = [a.joined(b) for a, b in pairs] + self.points[len(self.points) // 2 * 2 :]
            self.step_s *= 2

    def to_json(self) -> dict[str, Any]:
        rows = [[_short(getattr(point, name)) for name in HistoryPoint.__slots__] for point in self.points]
        return {"step_s": self.step_s, "fields": list(HistoryPoint.__slots__), "points": rows}

    @classmethod
    def from_json(cls, said: Any, place: str = "a history") -> History:
        """Read what `to_json` gave; CorruptState if it makes no sense."""
        try:
            rows = [dict(zip(said["fields"], values, strict=False)) for values in said["points"][-MOST_POINTS:]]
            return cls([check_record(HistoryPoint, row, place) for row in rows], float(said["step_s"]))
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptState(f"{place} is damaged: {type(error).__name__}.") from error


class HistoryRecords:
    """Keeps one history per worker."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._store = folder, folder.store

    def put(self, worker: str, history: History) -> None:
        self._store.put(self._key(worker), encode(history.to_json()))

    def read(self, worker: str) -> History | None:
        """The history of a worker; None if it was not recorded, or is damaged."""
        key = self._key(worker)
        with contextlib.suppress(FileNotFoundError, CorruptState):
            return History.from_json(read_object(self._store.get(key), key), key)
        return None

    def _key(self, worker: str) -> str:
        return f"history/{worker}.{self._folder.known_generation()}.json"


def _short(value: float | None) -> float | None:
    """Three decimals are enough for a chart."""
    return round(value, 3) if isinstance(value, float) else value
