"""Queries SQLite, and any database with a DB-API connection."""

from __future__ import annotations

import contextlib
import importlib
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote as quote_path

from shardmill.core import permission
from shardmill.core.errors import DatabaseError, DatabaseLost, ShardmillError, SpecError
from shardmill.core.extras import missing_package
from shardmill.plan import KeyValue
from shardmill.sources.sql.base import UNKNOWN, Rows
from shardmill.sources.sql.query import MARK, column, select

SQLITE, DUCKDB, PYTHON = "sqlite:///", "duckdb:///", permission.PYTHON
_BUSY_S = 30.0
# The DB-API exceptions that are about the connection; every driver uses these names.
_PASSING = ("OperationalError", "InterfaceError")


class Sqlite:
    """An SQLite file, opened read-only."""

    kind = "sqlite"

    def __init__(self, place: str) -> None:
        self.path = Path(place.removeprefix(SQLITE)).expanduser().absolute()
        self.place = f"{SQLITE}{self.path}"

    @contextlib.contextmanager
    def open(self, patience_s: float = 0.0, plain: bool = False) -> Iterator[DbApiSession]:
        if not self.path.is_file():
            raise DatabaseError(
                f"{self.path}: no such file.", hint="An SQLite URL is sqlite:///relative or sqlite:////absolute."
            )
        try:
            opened = sqlite3.connect(
                f"file:{quote_path(str(self.path))}?mode=ro", uri=True, timeout=_BUSY_S, isolation_level=None
            )
        except sqlite3.Error as error:
            raise DatabaseError(f"{self.path}: {error}.", hint="Check that you may read it.") from error
        # Text that is not UTF-8 makes a bad row; it must not end the run.
        opened.text_factory = _decode
        with contextlib.closing(opened):
            session = DbApiSession(opened, self.place, self.path.name, "qmark")
            session.execute("BEGIN").close()
            yield session


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape")


class DuckDb:
    """A DuckDB file, opened read-only."""

    kind = "duckdb"

    def __init__(self, place: str) -> None:
        self.path = Path(place.removeprefix(DUCKDB)).expanduser().absolute()
        self.place = f"{DUCKDB}{self.path}"

    @contextlib.contextmanager
    def open(self, patience_s: float = 0.0, plain: bool = False) -> Iterator[DbApiSession]:
        try:
            import duckdb
        except ImportError as error:
            raise missing_package("duckdb") from error
        if not self.path.is_file():
            raise DatabaseError(
                f"{self.path}: no such file.", hint="A DuckDB URL is duckdb:///relative or duckdb:////absolute."
            )
        try:
            opened = duckdb.connect(str(self.path), read_only=True)
        except duckdb.IOException as error:
            if "lock" in str(error).lower():
                raise DatabaseLost(
                    f"{self.path}: another program writes to it.", hint="End it, and run again."
                ) from error
            raise DatabaseError(f"{self.path}: {_first_line(error)}", hint="Check that DuckDB opens it.") from error
        with contextlib.closing(opened):
            session = DbApiSession(opened, self.place, self.path.name, "qmark")
            session.execute("BEGIN TRANSACTION")
            yield session


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


class Factory:
    """`python:package.module:connect`, a function without arguments that each worker calls for a connection."""

    kind = "python"

    def __init__(self, place: str) -> None:
        permission.check([place])
        self.place = place
        module, _, name = place.removeprefix(PYTHON).partition(":")
        try:
            self._connect: Callable[[], Any] = getattr(_import(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise SpecError(
                f"{place}: {error}.", hint="Write python:MODULE:FUNCTION, with a module that workers can import."
            ) from error

    @contextlib.contextmanager
    def open(self, patience_s: float = 0.0, plain: bool = False) -> Iterator[DbApiSession]:
        with _explained(self.place, ""):
            opened = self._connect()
        with contextlib.closing(opened):
            yield DbApiSession(opened, self.place, self.place, _paramstyle(opened))


def _import(module: str) -> Any:
    """Import a module, also from the current folder: workers find modules there, so the planner must too."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(module)


def _paramstyle(connection: Any) -> str:
    module = sys.modules.get(type(connection).__module__.partition(".")[0].lstrip("_"))
    return str(getattr(module, "paramstyle", "qmark"))


class DbApiSession:
    def __init__(self, connection: Any, place: str, tag: str, paramstyle: str) -> None:
        self._connection, self._place, self._tag, self._style = connection, place, tag, paramstyle

    def identify(self) -> str:
        return self._tag

    def describe(self, query: str) -> list[tuple[str, str]]:
        with contextlib.closing(self.execute(select("*", query, " WHERE 1 = 0"))) as cursor:
            return [(c[0], UNKNOWN) for c in cursor.description or ()]

    def expression(self, name: str, kind: str) -> str:
        return column(name)

    def key_expression(self, name: str) -> str:
        return column(name)

    def rows(self, sql: str, values: Sequence[KeyValue] = (), most: Callable[[], int] = lambda: 1000) -> Iterator[Rows]:
        with contextlib.closing(self.execute(sql, values)) as cursor:
            while True:
                with _explained(self._place, sql):
                    batch = cursor.fetchmany(most())
                if not batch:
                    return
                yield batch

    def can_seek(self, sql: str, values: Sequence[KeyValue]) -> None:
        return None

    def execute(self, sql: str, values: Sequence[KeyValue] = ()) -> Any:
        with _explained(self._place, sql):
            cursor = self._connection.cursor()
            # In DuckDB, execute returns a different cursor from the one it is called on.
            return (cursor.execute(*self._bound(sql, values)) if values else cursor.execute(sql)) or cursor

    def _bound(self, sql: str, values: Sequence[KeyValue]) -> tuple[str, Any]:
        """The statement with the placeholders of its driver, and their values."""
        names = [f"k{i}" for i in range(1, len(values) + 1)]
        marks = {
            "qmark": ["?"] * len(names),
            "format": ["%s"] * len(names),
            "pyformat": ["%s"] * len(names),
            "numeric": [f":{i + 1}" for i in range(len(names))],
            "named": [f":{name}" for name in names],
        }[self._style]
        if self._style in ("format", "pyformat"):
            sql = sql.replace("%", "%%")
        first, *rest = sql.split(MARK)
        text = first + "".join(mark + piece for mark, piece in zip(marks, rest, strict=True))
        return text, dict(zip(names, values, strict=True)) if self._style == "named" else list(values)


@contextlib.contextmanager
def _explained(place: str, sql: str) -> Iterator[None]:
    try:
        yield
    except ShardmillError:
        raise
    except sqlite3.Error as error:
        raise _explain_sqlite(error, place) from error
    except Exception as error:
        if any(kind.__name__ in _PASSING for kind in type(error).__mro__):
            raise DatabaseLost(f"{place}: {error}.", hint="Run the same command again: it resumes.") from error
        raise DatabaseError(f"{place}: {type(error).__name__}: {error}.", hint="Try the query by hand.") from error


def _explain_sqlite(error: sqlite3.Error, place: str) -> ShardmillError:
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR")):
        return DatabaseLost(f"{place}: {error}.", hint="Another program is writing to it; try again.")
    if code.startswith("SQLITE_READONLY"):
        return DatabaseError(f"The query writes, but a source is read-only: {error}.", hint="Give a SELECT.")
    return DatabaseError(f"{place}: {error}.", hint="Try the query with the sqlite3 command.")
