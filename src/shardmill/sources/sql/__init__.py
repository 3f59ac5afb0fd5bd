"""Databases as sources, which --query selects rows of. It has the functions of `sources.base.PlaceReader`.

A database is declared with its scheme and its class (`sources.kinds`). `split` uses this package directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.core import permission
from shardmill.core.errors import SourceError, nearest
from shardmill.core.passwords import withhold
from shardmill.plan import Shard, SourceFile, SourceStat
from shardmill.plugins import SourceKind, declared, find, find_by_scheme
from shardmill.sources.base import Fields
from shardmill.sources.sql.base import Database
from shardmill.store import is_url

if TYPE_CHECKING:
    import pyarrow as pa

    from shardmill.sources.sql.source import SqlSource


def find_database(place: str) -> SourceKind | None:
    """The database that an address or, by its first bytes, a local file is; None if it is none."""
    found: SourceKind | None = find_by_scheme("sources", place)
    if found is not None or is_url(place):
        return found if found is not None and found.database else None
    kinds: list[SourceKind] = [kind for kind in declared("sources") if kind.database and kind.magic]
    with contextlib.suppress(OSError, ValueError), open(Path(place).expanduser(), "rb") as file:
        head = file.read(max(kind.magic_at + len(kind.magic) for kind in kinds))
        return next((kind for kind in kinds if head[kind.magic_at :].startswith(kind.magic)), None)
    return None


def choose_database(places: Sequence[str]) -> SourceKind:
    """The database of a query."""
    if len(places) != 1:
        raise SourceError("--query takes one database.", hint="Name one source.")
    place = places[0]
    if (kind := find_database(place)) is not None:
        return kind
    if is_url(place):
        known = [scheme.rstrip(":/") for kind in declared("sources") if kind.database for scheme in kind.schemes]
        scheme = place.partition("://")[0]
        raise SourceError(
            f"{scheme}:// is not a supported database.",
            hint="Name a function of yours that returns a DB-API connection: python:MODULE:FUNCTION. "
            f"{nearest(scheme, known)} Packages bring others: shardmill plugins",
        )
    if find_by_scheme("sources", place) is not None:
        raise SourceError(f"{place} is not a database.", hint="Omit --query.")
    if Path(place).expanduser().exists():
        raise SourceError(f"{place} is neither an SQLite nor a DuckDB file.", hint="To read a file, omit --query.")
    sqlite: SourceKind = find("sources", "sqlite")
    return sqlite


def open_database(place: str) -> Database:
    opened: Database = choose_database([place]).part("database")(place)
    return opened


def discover(places: Sequence[str], fields: Fields) -> SourceStat:
    from shardmill.sources.sql.source import describe

    permission.allow(permission.code_among("", places))
    return describe(open_database(places[0]), fields)


def list_columns(places: Sequence[str], query: str) -> dict[str, pa.DataType]:
    """The names and types of the columns that a query gives, without binary ones, which cannot be read."""
    from shardmill.sources.sql.source import list_columns

    permission.allow(permission.code_among("", places))
    return list_columns(open_database(places[0]), query)


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> SqlSource:
    from shardmill.sources.sql.source import SqlSource

    return SqlSource(open_database(stat.files[0].place), stat, fields, max_item_bytes)


def count_rows(stat: SourceStat, file: SourceFile) -> None:
    """Not known without the query: see `count_query`."""


def count_query(stat: SourceStat, fields: Fields, shards: Sequence[Shard]) -> int:
    """Count the rows of the query now, in the range that was planned."""
    return open_source(stat, fields, 1).count(shards)


@contextlib.contextmanager
def stream(place: str, query: str, batch_rows: int) -> Iterator[tuple[list[str], Iterator[list[tuple[Any, ...]]]]]:
    """Read a query in one snapshot: the names of its columns, and its rows as Python values."""
    from shardmill.sources.sql.query import check_query

    query = check_query(query)
    permission.allow(permission.code_among("", [place]))
    with open_database(withhold(place)).open(plain=True) as session:
        names = [name for name, _ in session.describe(query)]
        yield names, session.rows(query, (), lambda: batch_rows)
