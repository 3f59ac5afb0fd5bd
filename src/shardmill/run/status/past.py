"""What all workers of a run did over time, as they recorded it."""

from __future__ import annotations

from collections.abc import Sequence

from shardmill.ledger import History, HistoryPoint, Ledger
from shardmill.run.status.state import Status

_BINS = 120
_COUNTS = ("rows", "bytes", "tokens", "tokens_out")


def read_past(ledger: Ledger, status: Status) -> list[HistoryPoint]:
    """The history of a run: that of its view, or those of all its workers together. Empty if none was recorded."""
    view = ledger.overview.read() if status.view_age_s is not None else None
    if view is not None:
        return view.history.points
    found = (ledger.history.read(str(worker["id"])) for worker in status.workers)
    return join_histories([history for history in found if history is not None])


def join_histories(histories: Sequence[History], bins: int = _BINS) -> list[HistoryPoint]:
    """The histories of several workers as that of all of them, in stretches of equal length.

    Counts and memory are those of all workers together, the use of devices is their mean.
    """
    points = [point for history in histories for point in history.points if point.seconds > 0]
    if not points:
        return []
    began, ended = min(point.at - point.seconds for point in points), max(point.at for point in points)
    step = max(min(history.step_s for history in histories), (ended - began) / bins)
    sums = [_Stretch() for _ in range(max(1, round((ended - began) / step)))]
    step = (ended - began) / len(sums)
    for point in points:
        start = point.at - point.seconds
        first = min(len(sums) - 1, int((start - began) / step))
        last = min(len(sums) - 1, int((point.at - began) / step))
        for i in range(first, last + 1):
            overlap = min(point.at, began + (i + 1) * step) - max(start, began + i * step)
            if overlap > 0:
                sums[i].add(point, overlap, step)
    return [stretch.to_point(began + (i + 1) * step, step) for i, stretch in enumerate(sums)]


class _Stretch:
    """The sums over the parts of points that fall into one stretch of time."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_COUNTS, 0.0)
        self._memory = self._device = self._used = self._measured = 0.0

    def add(self, point: HistoryPoint, overlap: float, step: float) -> None:
        for name in _COUNTS:
            self._counts[name] += getattr(point, name) * overlap / point.seconds
        self._memory += (point.memory_bytes or 0.0) * overlap / step
        self._device += (point.device_bytes or 0.0) * overlap / step
        if point.use is not None:
            self._used += point.use * overlap
            self._measured += overlap

    def to_point(self, at: float, seconds: float) -> HistoryPoint:
        use = self._used / self._measured if self._measured else None
        counts = {name: round(count) for name, count in self._counts.items()}
        return HistoryPoint(at, seconds, **counts, memory_bytes=self._memory, device_bytes=self._device, use=use)
