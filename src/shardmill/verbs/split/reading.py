"""Reads files, database rows and iterables as blocks of JSON lines."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardmill.core.errors import SourceError
from shardmill.core.passwords import withhold
from shardmill.plan import SourceFile, SourceStat
from shardmill.sources.discovery import find_files
from shardmill.sources.files import check_read, check_unchanged, file_name
from shardmill.sources.formats import find_format
from shardmill.sources.sql import open_database, stream
from shardmill.verbs.split.blocks import Blocks, gather
from shardmill.verbs.split.items import At, encode_item
from shardmill.verbs.split.lines import read_lines, read_texts

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class Feed:
    """Items to split. Two feeds with the same `identity` have the same items; None means that this is unknown.

    `share` is the fraction read so far, if known. `schema` returns the schema, if the source has one.
    """

    name: str
    identity: list[list[object]] | None
    blocks: Callable[[], Blocks]
    share: float = 0.0
    schema: Callable[[], pa.Schema | None] = lambda: None

    @property
    def repeatable(self) -> bool:
        """Whether the feed can be read twice."""
        return self.identity is not None


def feed_files(places: Sequence[str], format: str | None = None, *, bare_text: bool = False) -> Feed:
    """Feed files, folders, globs or URLs; with `bare_text` a line of plain text is a JSON string, not an object."""
    kind, files = find_files(places, format)
    stat = SourceStat(kind, files, {})
    total = max(1, sum(file.size_bytes for file in files))

    def blocks() -> Blocks:
        before = 0
        for file in files:
            check_unchanged(file)

            def at(position: int, before: int = before) -> None:
                feed.share = (before + position) / total

            yield from _read_file(stat, file, bare_text, at)
            check_read(file)
            before += file.size_bytes

    identity: list[list[object]] = [[f.name, *f.identity[1:]] for f in files]

    def schema() -> pa.Schema | None:
        from shardmill.verbs.split.rows import find_schema

        return find_schema(stat)

    feed = Feed(_stem(files[0].place), [[kind], *identity], blocks, schema=schema)
    return feed


def _read_file(stat: SourceStat, file: SourceFile, bare_text: bool, at: At) -> Blocks:
    """Read the items of a file; progress in bytes goes to `at`."""
    if not file.size_bytes:
        return iter(())
    format = find_format(stat.format)
    if format.unit == "line":
        return read_texts(file, bare_text, at) if format.column else read_lines(file, at)
    from shardmill.verbs.split.rows import read_rows

    return read_rows(stat, file, at)


def feed_iterable(items: Iterable[Any], name: str = "items") -> Feed:
    """Feed any iterable: of dicts, or of strings if the chunks are JSON."""
    return Feed(name, None, lambda: gather(encode_item(item, i) for i, item in enumerate(items)))


def feed_database(database: Any, query: str, batch_rows: int = 10_000) -> Feed:
    """Feed the rows of a query, each an object by column name. `database` is a URL, a path or a connection.

    With a URL, all rows come from one snapshot. psycopg connections use a named cursor, because a plain one fetches the
    whole result at once. For other connections, `cursor()` is called; any object with this method works.
    """
    if isinstance(database, str):
        place = withhold(database)
        open_database(place)

    def rows() -> Iterator[dict[str, Any]]:
        with _opened(place if isinstance(database, str) else database, query, batch_rows) as (names, batches):
            _refuse_twins(names, query)
            for batch in batches:
                for row in batch:
                    yield row if isinstance(row, dict) else dict(zip(names, row, strict=True))

    return feed_iterable(rows(), "query")


def _opened(database: Any, query: str, batch_rows: int) -> AbstractContextManager[tuple[list[str], Iterator[Any]]]:
    if isinstance(database, str):
        return stream(database, query, batch_rows)
    return _stream_connection(database, query, batch_rows)


@contextlib.contextmanager
def _stream_connection(connection: Any, query: str, batch_rows: int) -> Iterator[tuple[list[str], Iterator[Any]]]:
    with contextlib.ExitStack() as stack:
        if type(connection).__module__.partition(".")[0] == "psycopg":
            stack.enter_context(connection.transaction())
            cursor = stack.enter_context(contextlib.closing(connection.cursor("shardmill_split")))
        else:
            cursor = stack.enter_context(contextlib.closing(connection.cursor()))
        cursor.execute(query)
        first = cursor.fetchmany(batch_rows)
        names = [column[0] for column in cursor.description or ()]
        yield names, itertools.chain([first], iter(lambda: cursor.fetchmany(batch_rows), []))


def _refuse_twins(names: list[str], query: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"the query has two columns named {twice!r}.", hint=f"Rename one with AS: {query[:60]}")


def _stem(place: str) -> str:
    return file_name(place).partition(".")[0] or "dataset"
