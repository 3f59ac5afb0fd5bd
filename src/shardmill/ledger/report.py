"""What items that are worked on for hours report as they go: a bounded number of points per item. A hint."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_record
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import encode

MOST_REPORTS = 240


@dataclass(frozen=True, slots=True)
class ItemReport:
    """Figures of an item at a step. None stands for a figure that is not a finite number."""

    step: int
    at: float
    figures: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class ItemReports:
    """The reports of an item, in order of their steps; of too many, every second is dropped."""

    points: list[ItemReport] = field(default_factory=list)

    def add(self, point: ItemReport) -> ItemReports:
        """With one more; an attempt that goes back to a checkpoint replaces what came after it.

        >>> ItemReports().add(ItemReport(5, 0.0, {})).add(ItemReport(3, 1.0, {})).points
        [ItemReport(step=3, at=1.0, figures={})]
        """
        points = [*(p for p in self.points if p.step < point.step), point]
        return ItemReports(points[(len(points) - 1) % 2 :: 2] if len(points) > MOST_REPORTS else points)


class ReportRecords:
    """Keeps one object of reports per item."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._store = folder, folder.store

    def put(self, shard: int, row: int, reports: ItemReports) -> None:
        points = [{name: getattr(point, name) for name in point.__slots__} for point in reports.points]
        self._store.put(self._key(shard, row), encode({"points": points}))

    def read(self, shard: int, row: int = 0) -> ItemReports:
        """The reports of an item; none if it has none, or they are damaged."""
        key = self._key(shard, row)
        with contextlib.suppress(FileNotFoundError, CorruptState):
            return read_record(ItemReports, self._store.get(key), key)
        return ItemReports()

    def _key(self, shard: int, row: int) -> str:
        return f"reports/{shard:06d}.{self._folder.known_generation()}.{row:06d}.json"
