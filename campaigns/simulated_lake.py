"""A simulated table of a lake that rows are delivered to: the way to it is as bad as that to the run folder.

Its commits compare and set, as those of Lance and Delta do: one that does not know the latest version is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from campaigns.simulated_stores import Line
from shardmill.core.errors import StoreError
from shardmill.plugins.base import SinkKind
from shardmill.sinks.base import Delivery, Lot, Shipment
from shardmill.sinks.remembered import count_lots, note, refuse_others

KIND = SinkKind(name="simulated", schemes=("simulated:",), delivery="campaigns.simulated_lake:SimulatedDelivery")


@dataclass(slots=True)
class LakeTable:
    """What is there: files that were staged, and what the latest version names."""

    version: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)


class Lake:
    """All tables of a simulated world, by address."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.tables: dict[str, LakeTable] = {}

    def open(self, address: str, shipment: Shipment) -> Delivery:
        return SimulatedDelivery(address, shipment, self)

    def ids(self, address: str) -> Counter[str]:
        """How often each row is in a table."""
        table = self.tables.get(address, LakeTable())
        batches = [batch for name in table.named for batch in table.files[name]]
        return Counter(id for batch in batches for id in batch.column("id").to_pylist())


class SimulatedDelivery(Delivery):
    stages = True
    lots_at_once = 2

    def __init__(self, address: str, shipment: Shipment, lake: Lake) -> None:
        super().__init__(address, shipment)
        self._lake = lake

    def prepare(self) -> None:
        self._ask("PUT", "prepare", lambda: self._lake.tables.setdefault(self.address, LakeTable()))
        refuse_others(self.address, self.shipment, self._look()[1])

    def count(self) -> int:
        return count_lots(self.shipment, self._look()[1])

    def stage(self, lot: Lot) -> dict[str, Any]:
        rows, table = list(lot.read()), self._lake.tables[self.address]
        name = f"{lot.number}-{len(table.files)}"
        self._ask("PUT", f"staged/{name}", lambda: table.files.setdefault(name, rows))
        return {"file": name}

    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        version, kept = self._look()
        if count_lots(self.shipment, kept) != first:
            return False
        names = [lot.staged["file"] for lot in lots]
        new = {**kept, **note(self.shipment, first + len(lots))}
        return bool(self._ask("PUT", "commits/lake", lambda: self._swap(version, new, names)))

    def _swap(self, version: int, kept: dict[str, str], names: list[str]) -> bool:
        table = self._lake.tables[self.address]
        if table.version != version:
            return False
        table.version, table.kept = version + 1, kept
        table.named += names
        return True

    def scan(self) -> Iterator[pa.RecordBatch]:
        table = self._lake.tables.get(self.address, LakeTable())
        for name in table.named:
            yield from table.files[name]

    def delete(self, keys: pa.RecordBatch) -> None:
        raise NotImplementedError

    def _look(self) -> tuple[int, dict[str, str]]:
        table = self._ask("GET", "latest", lambda: self._lake.tables.get(self.address, LakeTable()))
        return table.version, dict(table.kept)

    def _ask(self, kind: str, key: str, effect: Any) -> Any:
        return self._lake.line.ask(kind, key, effect, lambda: StoreError("The lake does not answer."))
