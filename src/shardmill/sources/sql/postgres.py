"""Queries PostgreSQL with server-side cursors, in one snapshot, in binary format."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardmill.core.errors import DatabaseError, ShardmillError
from shardmill.plan import KeyValue
from shardmill.postgres import explain, load, reading
from shardmill.sources.sql.base import BINARY, Rows
from shardmill.sources.sql.query import MARK, column, select

_BYTEA = 17
# By type OID, which is the same in every PostgreSQL. Other types are read as text, as the server prints them.
_NATIVE = {
    16: "bool",
    19: "string",
    20: "int64",
    21: "int16",
    23: "int32",
    25: "string",
    700: "float",
    701: "double",
    1042: "string",
    1043: "string",
    1082: "date32[day]",
    1114: "timestamp[us]",
    1184: "timestamp[us, tz=UTC]",
}
_DAYS_TO_2000, _US_TO_2000 = 10_957, 946_684_800_000_000
_INFINITE_DAYS, _INFINITE_US = ((1 << 31) - 1, -(1 << 31)), ((1 << 63) - 1, -(1 << 63))


class Postgres:
    kind = "postgresql"

    def __init__(self, place: str) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, patience_s: float = 0.0, plain: bool = False) -> Iterator[PostgresSession]:
        with reading(self.place, patience_s=patience_s) as connection:
            for name, loader in _raw_loaders(load()).items() if not plain else ():
                connection.adapters.register_loader(name, loader)
            yield PostgresSession(connection, self.place)


class PostgresSession:
    def __init__(self, connection: Any, place: str) -> None:
        self._psycopg = load()
        self._connection, self._place = connection, place
        self._native: dict[str, str] = {}
        self._cursors = 0

    def identify(self) -> str:
        name = self._one("SELECT current_database()")
        try:
            with self._connection.transaction():
                number = self._one("SELECT system_identifier FROM pg_control_system()")
        except DatabaseError:
            number = self._one("SELECT oid FROM pg_database WHERE datname = current_database()")
        return f"{number}/{name}"

    def describe(self, query: str) -> list[tuple[str, str]]:
        head = select("*", "")
        with self._explained(query, head.index("(") + 2):
            found = self._connection.execute(select("*", query, " LIMIT 0")).description or ()
        self._native = {c.name: _NATIVE.get(c.type_code, "") for c in found}
        return [(c.name, BINARY if c.type_code == _BYTEA else _NATIVE.get(c.type_code, "string")) for c in found]

    def expression(self, name: str, kind: str) -> str:
        return column(name) if self._native[name] == kind else f"{column(name)}::text"

    def key_expression(self, name: str) -> str:
        return f"{column(name)}::text"

    def rows(self, sql: str, values: Sequence[KeyValue] = (), most: Callable[[], int] = lambda: 1000) -> Iterator[Rows]:
        self._cursors += 1
        with self._explained(), self._connection.cursor(f"shardmill_{self._cursors}", binary=True) as cursor:
            cursor.execute(self._literal(sql, values))
            while batch := cursor.fetchmany(most()):
                yield batch

    def can_seek(self, sql: str, values: Sequence[KeyValue]) -> bool:
        with self._explained():
            self._connection.execute("SET LOCAL enable_seqscan = off")
            plan = self._one(f"EXPLAIN (FORMAT JSON) {self._literal(sql, values)}")
            self._connection.execute("SET LOCAL enable_seqscan = on")
        return '"Index Cond"' in (plan if isinstance(plan, str) else json.dumps(plan))

    def _literal(self, sql: str, values: Sequence[KeyValue]) -> str:
        """The statement with its values as literals, because a percent sign in the user's query is not a placeholder.

        Keys are text that the server wrote; it reads an untyped literal as the type it is compared with.
        """
        first, *rest = sql.split(MARK)
        literals = (self._psycopg.sql.Literal(str(value)).as_string(self._connection) for value in values)
        return first + "".join(literal + piece for literal, piece in zip(literals, rest, strict=True))

    def _one(self, sql: str) -> Any:
        with self._explained():
            row = self._connection.execute(sql).fetchone()
        return row[0] if row else None

    @contextlib.contextmanager
    def _explained(self, query: str = "", before: int = 0) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            raise explain(error, self._place, query, before) from error
        except UnicodeDecodeError as error:
            wrong: ShardmillError = DatabaseError(
                f"{self._place} contains text that is not UTF-8.", hint="Convert it in the query: convert_from(…)."
            )
            raise wrong from error


def _raw_loaders(psycopg: Any) -> dict[str, type]:
    """Load dates and times as the integers that Arrow uses: faster, and years outside Python's range are no error.

    Infinity stays text, which no Arrow time type accepts: the row becomes a bad row.
    """

    def make(code: str, offset: int, infinite: tuple[int, int]) -> type:
        unpack = struct.Struct(code).unpack

        class Raw(psycopg.adapt.Loader):  # type: ignore[misc]
            format = psycopg.pq.Format.BINARY

            def load(self, data: Any) -> object:
                value = unpack(data)[0]
                if value in infinite:
                    return "infinity" if value > 0 else "-infinity"
                return value + offset

        return Raw

    micros = make(">q", _US_TO_2000, _INFINITE_US)
    return {"date": make(">i", _DAYS_TO_2000, _INFINITE_DAYS), "timestamp": micros, "timestamptz": micros}
