"""What DuckDB and SQLite share: a lot is one transaction, which also counts it."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardmill.core.errors import DatabaseError, UsageError
from shardmill.sinks.address import split_gone
from shardmill.sinks.base import Delivery, Holding, Lot, Shipment, TurnStep, how_to_go_on
from shardmill.sinks.predicates import any_of, quoted
from shardmill.sinks.remembered import count_lots, holds, note, note_step, read_holdings, refuse_others

# The table in which a database remembers what was delivered to it.
NOTES = "shardmill_notes"
DEFAULT_TABLE = "result"
_KEYS_AT_ONCE = 500


class DatabaseDelivery(Delivery):
    """A table of a database file: `SCHEME:FILE#TABLE`.

    With `?gone=COLUMN` behind it, rows that leave the run stay and get the time in that column.
    """

    lots_at_once = 1
    scheme = ""
    # What follows a condition to have the rows locked, where the transaction alone does not.
    locking = ""

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        place, self.gone = split_gone(address)
        path, _, table = place.removeprefix(self.scheme).partition("#")
        self.path, self.table = path, table or DEFAULT_TABLE
        self._database: Any = None

    @abstractmethod
    def connect(self) -> Any:
        """Open the file, and wait for others that have it open."""

    @abstractmethod
    def insert(self, batches: Iterator[pa.RecordBatch]) -> None:
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
        notes = f"CREATE TABLE IF NOT EXISTS {NOTES} (place TEXT, name TEXT, value TEXT, PRIMARY KEY (place, name))"
        if self.gone:
            self._refuse_marks()
        with self.told():
            self.run(notes)
            refuse_others(self.address, self.shipment, self._kept())
            self.create()

    def count(self) -> int:
        with self.told():
            return count_lots(self.shipment, self._kept())

    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        def add() -> None:
            self.insert(batch for lot in lots for batch in lot.read())

        with self.told():
            return self._change_lots(first, first + len(lots), add)

    def replace(self, lots: int, rows: pa.RecordBatch) -> bool:
        def replace() -> None:
            self._delete(rows.select(list(self.shipment.key)))
            self.insert(iter([rows]))

        with self.told():
            return self._change_lots(lots, lots, replace)

    def holdings(self) -> dict[str, tuple[str, Holding]]:
        with self.told():
            return read_holdings(self._kept())

    def turn(self, step: TurnStep) -> bool:
        def take() -> dict[str, str]:
            made = step.decide(self._find(step.keys))
            staying = made.keys.num_rows - made.leaving * bool(self.gone)
            self._mark(made.keys.slice(staying))
            # With what was marked earlier: a row that comes back has no mark.
            self._delete(made.keys.slice(0, staying))
            if made.rows.num_rows:
                self.insert(iter([made.rows]))
            return note_step(self.shipment, step, made)

        with self.told():
            return self._change(lambda: holds(step, self._kept()), take)

    def _change_lots(self, lots: int, after: int, change: Callable[[], None]) -> bool:
        """Change the table in a transaction, if it has `lots` lots of this run."""

        def make() -> dict[str, str]:
            change()
            return note(self.shipment, after)

        return self._change(lambda: self.count() == lots, make)

    def _change(self, is_known: Callable[[], bool], change: Callable[[], dict[str, str]]) -> bool:
        """Change the table and its notes in a transaction, if it is as it is known to be."""
        self.begin()
        try:
            if not is_known():
                self.run("ROLLBACK")
                return False
            # Notes are also written if they stay the same: so that two transactions of DuckDB are in conflict.
            for name, value in change().items():
                self.run(f"DELETE FROM {NOTES} WHERE place = ? AND name = ?", [self.table, name])
                self.run(f"INSERT INTO {NOTES} VALUES (?, ?, ?)", [self.table, name, value])
            self.run("COMMIT")
        except BaseException:
            # Some errors, a full disk among them, have ended the transaction.
            with contextlib.suppress(Exception):
                self.run("ROLLBACK")
            raise
        return True

    def show_as(self, name: str) -> None:
        """Let the view `name` show the table, in one transaction."""
        try:
            with self.told():
                self.begin()
                try:
                    self.run(f"DROP VIEW IF EXISTS {quoted(name)}")
                    columns = ", ".join(map(quoted, self.shipment.schema.names)) if self.gone else "*"
                    shown = f"SELECT {columns} FROM {quoted(self.table)} WHERE {self.living()}"
                    self.run(f"CREATE VIEW {quoted(name)} AS {shown}")
                    self.run("COMMIT")
                except BaseException:
                    with contextlib.suppress(Exception):
                        self.run("ROLLBACK")
                    raise
        except DatabaseError as error:
            raise DatabaseError(
                f"{error.message} So {name} is no view of it.",
                hint="If it is a table, rename it, or give another name; the rows were delivered.",
            ) from error

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say what the library did not do as one of our errors."""
        try:
            yield
        except self.library_errors() as error:
            reason = (str(error) or type(error).__name__).partition("\n")[0].rstrip(". ")
            raise DatabaseError(f"{self.address}: {reason}.", hint=how_to_go_on(reason)) from error

    @abstractmethod
    def library_errors(self) -> tuple[type[Exception], ...]:
        """What the library raises; () if `run` has said it already."""

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
        with self.told():
            self._delete(keys)

    def _delete(self, keys: pa.RecordBatch) -> None:
        for condition, values in self._conditions(keys):
            self.run(f"DELETE FROM {quoted(self.table)} WHERE {condition}", values)

    def _find(self, keys: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The rows with these keys, which nobody else changes until the transaction ends."""
        found = ((self.living(where) + self.locking, values) for where, values in self._conditions(keys))
        return [batch for where, values in found for batch in self.select(where, values)]

    def _mark(self, keys: pa.RecordBatch) -> None:
        """Mark the rows with these keys as gone."""
        for condition, values in self._conditions(keys):
            marked = f"UPDATE {quoted(self.table)} SET {quoted(self.gone)} = CURRENT_TIMESTAMP"
            self.run(f"{marked} WHERE {self.living(condition)}", values)

    def living(self, condition: str = "TRUE") -> str:
        """A condition that holds for no row that is marked as gone."""
        return f"({condition}) AND {quoted(self.gone)} IS NULL" if self.gone else condition

    def count_gone(self) -> int:
        if not self.gone:
            return 0
        with self.told():
            return int(self.run(f"SELECT count({quoted(self.gone)}) FROM {quoted(self.table)}")[0][0])

    def _refuse_marks(self) -> None:
        """Refuse a mark that rows cannot have."""
        if self.gone in self.shipment.schema.names:
            raise UsageError(
                f"{self.address}: the rows have a column {self.gone} of their own.", hint="Name another: ?gone=COLUMN"
            )
        if not self.shipment.key:
            raise UsageError(
                f"{self.address}: nothing identifies the rows, so none can be told to be gone.",
                hint="Run it with --id COLUMN, or leave ?gone= out.",
            )

    @abstractmethod
    def select(self, condition: str, values: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """The rows for which a condition holds."""

    def _conditions(self, keys: pa.RecordBatch) -> Iterator[tuple[str, list[Any]]]:
        for at in range(0, keys.num_rows, _KEYS_AT_ONCE):
            some, values = keys.slice(at, _KEYS_AT_ONCE), list[Any]()
            stored = pa.RecordBatch.from_pydict({f.name: self.as_values(some.column(f.name)) for f in some.schema})
            yield any_of(stored, literal=partial(_send, values)), values

    def as_values(self, column: pa.Array) -> list[Any]:
        """The values of a column as they are sent."""
        values: list[Any] = column.to_pylist()
        return values

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


def _send(values: list[Any], value: object) -> str:
    """Send a value beside the command, where this stands for it."""
    values.append(value)
    return "?"
