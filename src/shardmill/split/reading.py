"""Sources as blocks of JSON lines: files, a database's rows, any iterable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shardmill.errors import SourceError
from shardmill.sources.discovery import find_files
from shardmill.sources.files import check_unchanged, file_name
from shardmill.split.blocks import Blocks, gather
from shardmill.split.formats import encode_item, find_schema, read_file


@dataclass(slots=True)
class Feed:
    """Items to be split. `identity` tells whether two feeds are of the same items; None where that cannot be known.

    `share` is how much of it has been read, as far as that is known. `schema` is there where the source has one.
    """

    name: str
    identity: list[list[object]] | None
    blocks: Callable[[], Blocks]
    share: float = 0.0
    schema: Callable[[], pa.Schema | None] = lambda: None

    @property
    def repeatable(self) -> bool:
        """Whether it can be read twice."""
        return self.identity is not None


def feed_files(places: Sequence[str], format: str | None = None, *, bare_text: bool = False) -> Feed:
    """Files, folders, globs or URLs; with `bare_text` a line of plain text is a JSON string, not an object."""
    kind, files = find_files(places, format)
    total = max(1, sum(file.size_bytes for file in files))

    def blocks() -> Blocks:
        before = 0
        for file in files:
            check_unchanged(file)

            def at(position: int, before: int = before) -> None:
                feed.share = (before + position) / total

            yield from read_file(file, kind, bare_text, at)
            check_unchanged(file)
            before += file.size_bytes

    identity: list[list[object]] = [[f.name, f.size_bytes, f.tag, f.edges] for f in files]
    feed = Feed(_stem(files[0].place), [[kind], *identity], blocks, schema=lambda: find_schema(kind, files))
    return feed


def feed_iterable(items: Iterable[Any], name: str = "items") -> Feed:
    """Whatever can be gone through once: dicts, or texts where the chunks are JSON."""
    return Feed(name, None, lambda: gather(encode_item(item, i) for i, item in enumerate(items)))


def feed_database(connection: Any, query: str, batch_rows: int = 10_000) -> Feed:
    """The rows of a query over a DB-API connection, or over an SQLite file; each row is an object by column name.

    The driver must not fetch the whole result at once: a PostgreSQL cursor has to be a named one. A caller that has
    such a cursor gives an object whose `cursor()` returns it.
    """

    def rows() -> Iterator[dict[str, Any]]:
        with _connected(connection) as opened, contextlib.closing(opened.cursor()) as cursor:
            cursor.execute(query)
            names: list[str] = []
            while batch := cursor.fetchmany(batch_rows):
                names = names or _column_names(cursor, query)
                for row in batch:
                    yield row if isinstance(row, dict) else dict(zip(names, row, strict=True))

    return feed_iterable(rows(), "query")


def _column_names(cursor: Any, query: str) -> list[str]:
    names = [column[0] for column in cursor.description]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"the query has two columns named {twice!r}.", hint=f"Rename one with AS: {query[:60]}")
    return names


@contextlib.contextmanager
def _connected(connection: Any) -> Iterator[Any]:
    """A connection as it was given, or one of our own to an SQLite file, which is closed again."""
    if not isinstance(connection, str):
        yield connection
        return
    import sqlite3

    path = connection.removeprefix("sqlite:///")
    if "://" in path:
        raise SourceError(
            f"{path.partition('://')[0]}:// is not a database that is opened here.",
            hint="Open it with its driver and give the connection.",
        )
    try:
        opened = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    except sqlite3.OperationalError as error:
        raise SourceError(f"{path}: {error}.", hint="Check that the file is there and that you may read it.") from error
    with contextlib.closing(opened):
        yield opened


def _stem(place: str) -> str:
    return file_name(place).partition(".")[0] or "dataset"
