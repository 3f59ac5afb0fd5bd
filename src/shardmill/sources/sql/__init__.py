"""Databases as sources: PostgreSQL and SQLite by URL, any other through a function that connects.

A query is not a file format, so it is not in `sources.formats`: `sources` and `split` use this package directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.core import permission
from shardmill.core.errors import SourceError
from shardmill.core.passwords import withhold
from shardmill.plan import Shard, SourceStat
from shardmill.postgres import is_postgres
from shardmill.sources.base import Fields
from shardmill.sources.sql.base import Database
from shardmill.sources.sql.dbapi import MAGIC, PYTHON, SQLITE, Factory, Sqlite
from shardmill.store import is_url

if TYPE_CHECKING:
    import pyarrow as pa

    from shardmill.sources.sql.source import SqlSource


def is_database(place: str) -> bool:
    """Whether a place is a database URL, a function that connects, or an SQLite file."""
    if is_postgres(place) or place.startswith((SQLITE, PYTHON)):
        return True
    with contextlib.suppress(OSError), open(Path(place).expanduser(), "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def open_database(place: str) -> Database:
    if is_postgres(place):
        from shardmill.sources.sql.postgres import Postgres

        return Postgres(place)
    if place.startswith(PYTHON):
        return Factory(place)
    if place.startswith(SQLITE) or (
        not is_url(place) and (is_database(place) or not Path(place).expanduser().exists())
    ):
        return Sqlite(place)
    if not is_url(place):
        raise SourceError(f"{place} is not an SQLite file.", hint="To read a file, omit --query.")
    raise SourceError(
        f"{withhold(place).partition('://')[0]}:// is not a supported database.",
        hint="Name a function of yours that returns a DB-API connection: python:MODULE:FUNCTION.",
    )


def discover_query(places: Sequence[str], fields: Fields, format: str | None) -> SourceStat:
    from shardmill.sources.sql.source import describe

    permission.allow(permission.code_among("", places))
    if len(places) != 1:
        raise SourceError("--query takes one database.", hint="Name one source.")
    if format is not None:
        raise SourceError(f"--format {format} has no meaning for a query.", hint="Omit it.")
    return describe(open_database(places[0]), fields)


def list_query_columns(places: Sequence[str], query: str) -> dict[str, pa.DataType]:
    """The names and types of the columns that a query gives, without binary ones, which cannot be read."""
    from shardmill.sources.sql.source import list_columns

    permission.allow(permission.code_among("", places))
    return list_columns(open_database(places[0]), query)


def refuse_without_query(places: Sequence[str]) -> None:
    """Refuse a database without a query."""
    for place in places:
        if is_database(place):
            raise SourceError(
                f"{withhold(place)} is a database.",
                hint='Name the rows to read: --query "SELECT id, content FROM documents"',
            )


def open_query(stat: SourceStat, fields: Fields, max_item_bytes: int) -> SqlSource:
    from shardmill.sources.sql.source import SqlSource

    return SqlSource(open_database(stat.files[0].place), stat, fields, max_item_bytes)


def count_rows(stat: SourceStat, fields: Fields, shards: Sequence[Shard]) -> int:
    """Count the rows of the query now, in the range that was planned."""
    return open_query(stat, fields, 1).count(shards)


@contextlib.contextmanager
def stream(place: str, query: str, batch_rows: int) -> Iterator[tuple[list[str], Iterator[list[tuple[Any, ...]]]]]:
    """Read a query in one snapshot: the names of its columns, and its rows as Python values."""
    from shardmill.sources.sql.query import check_query, select

    query = check_query(query)
    permission.allow(permission.code_among("", [place]))
    with open_database(withhold(place)).open(plain=True) as session:
        names = [name for name, _ in session.describe(query)]
        yield names, session.rows(select("*", query), (), lambda: batch_rows)
