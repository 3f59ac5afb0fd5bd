"""What DuckDB and SQLite share: a lot is one transaction, which also counts it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardmill.core.errors import DatabaseError
from shardmill.sinks.base import Delivery, Lot, Shipment
from shardmill.sinks.predicates import any_of, quoted
from shardmill.sinks.remembered import count_lots, note, refuse_others

# The table in which a database remembers what was delivered to it.
NOTES = "shardmill_notes"
DEFAULT_TABLE = "result"
_KEYS_AT_ONCE = 500


class DatabaseDelivery(Delivery):
    """A table of a database file: `SCHEME:FILE#TABLE`."""

    lots_at_once = 1
    scheme = ""

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        path, _, table = address.removeprefix(self.scheme).partition("#")
        self.path, self.table = path, table or DEFAULT_TABLE
        self._database: Any = None

    @abstractmethod
    def connect(self) -> Any:
        """Open the file, and wait for others that have it open."""

    @abstractmethod
    def insert(self, batch: pa.RecordBatch) -> None:
        """Add rows to the table."""

    @abstractmethod
    def create(self) -> None:
        """Create the table, or refuse one that does not fit."""

    @property
    def database(self) -> Any:
        if self._database is None:
            self._database = self.connect()
        return self._database

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.database.execute(sql, list(values)).fetchall()
        return found

    def prepare(self) -> None:
        self.run(f"CREATE TABLE IF NOT EXISTS {NOTES} (place TEXT, name TEXT, value TEXT, PRIMARY KEY (place, name))")
        refuse_others(self.address, self.shipment, self._kept())
        self.create()

    def count(self) -> int:
        return count_lots(self.shipment, self._kept())

    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        self.begin()
        try:
            if self.count() != first:
                self.run("ROLLBACK")
                return False
            for lot in lots:
                for batch in lot.read():
                    self.insert(batch)
            for name, value in note(self.shipment, first + len(lots)).items():
                self.run(f"DELETE FROM {NOTES} WHERE place = ? AND name = ?", [self.table, name])
                self.run(f"INSERT INTO {NOTES} VALUES (?, ?, ?)", [self.table, name, value])
            self.run("COMMIT")
        except BaseException:
            self.run("ROLLBACK")
            raise
        return True

    def require_table(self) -> None:
        """Refuse to read what is not there; a file is not created for that."""
        if not self.exists() or not self.has_table(self.table):
            raise DatabaseError(
                f"{self.address} is gone: there is no table {self.table}.",
                hint="Deliver the run again: shardmill load --from RUN",
            )

    def exists(self) -> bool:
        return Path(self.path).exists()

    def begin(self) -> None:
        self.run("BEGIN")

    def delete(self, keys: pa.RecordBatch) -> None:
        for at in range(0, keys.num_rows, _KEYS_AT_ONCE):
            self.run(f"DELETE FROM {quoted(self.table)} WHERE {any_of(keys.slice(at, _KEYS_AT_ONCE))}")

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _kept(self) -> dict[str, str]:
        if not self.has_table(NOTES):
            return {}
        return dict(self.run(f"SELECT name, value FROM {NOTES} WHERE place = ?", [self.table]))

    @abstractmethod
    def has_table(self, name: str) -> bool: ...
