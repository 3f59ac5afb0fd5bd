"""Sources as blocks of JSON lines: files of every format, a database's rows, any iterable."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.errors import SourceError
from shardmill.plan import SourceFile
from shardmill.sources import MAX_ITEM_BYTES
from shardmill.sources.batches import over_limit
from shardmill.sources.csvrecords import Records
from shardmill.sources.csvs import DELIMITERS, read_header
from shardmill.sources.cuts import iter_lines
from shardmill.sources.discovery import find_files
from shardmill.sources.files import check_unchanged, file_name, open_filling, open_ranges, readable
from shardmill.sources.lines import BOM, BadLine, decode
from shardmill.sources.sampling import sample_rows
from shardmill.split.blocks import BLOCK_BYTES, Block, Buffers, gather
from shardmill.store import is_url, locate

READ = ("jsonl", "text", *DELIMITERS, "parquet")
_PARQUET_ROWS = 1024
_LINE_BYTES = 64 << 10
Blocks = Iterator[Block]


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
    kind, files = _find(places, format)
    total = max(1, sum(file.size_bytes for file in files))

    def blocks() -> Blocks:
        before = 0
        for file in files:
            check_unchanged(file)

            def at(position: int, before: int = before) -> None:
                feed.share = (before + position) / total

            yield from _read(file, kind, bare_text, at)
            check_unchanged(file)
            before += file.size_bytes

    identity: list[list[object]] = [[f.name, f.size_bytes, f.tag, f.edges] for f in files]
    feed = Feed(_stem(files[0].place), [[kind], *identity], blocks, schema=lambda: _schema(kind, files))
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


def encode_item(item: Any, index: int) -> bytes:
    try:
        return json.dumps(
            item, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain_value
        ).encode()
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"item {index:,} cannot be written as JSON: {error}.",
            hint="Give dicts of texts, numbers, lists and dicts; turn other values into text first.",
        ) from error


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no place in JSON")


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


def _find(places: Sequence[str], format: str | None) -> tuple[str, tuple[SourceFile, ...]]:
    kind, files = find_files(places, format)
    if kind not in READ:
        raise SourceError(
            f"{file_name(files[0].place)}: {kind} is not split yet.", hint=f"Of files, {', '.join(READ)} are."
        )
    return kind, files


def _stem(place: str) -> str:
    return file_name(place).partition(".")[0] or "dataset"


def _read(file: SourceFile, kind: str, bare_text: bool, at: Callable[[int], None]) -> Blocks:
    if not file.size_bytes:
        return
    if kind == "parquet":
        yield from _read_parquet(file, at)
    elif kind in DELIMITERS:
        yield from _read_csv(file, kind, at)
    else:
        blocks = _read_lines(file, at)
        yield from blocks if kind == "jsonl" else _as_texts(file, blocks, bare_text)


def _read_lines(file: SourceFile, at: Callable[[int], None]) -> Blocks:
    """The lines of a file; only a block and a line that is not yet whole are held."""
    position, rest, buffers = 0, b"", Buffers(BLOCK_BYTES + _LINE_BYTES)
    with open_filling(file) as fill:
        while position < file.end:
            buffer = buffers.take(len(rest) + BLOCK_BYTES)[: len(rest) + BLOCK_BYTES]
            buffer[: len(rest)] = rest
            if not (got := fill(position, buffer[len(rest) :])):
                break
            data = buffer[: len(rest) + got]
            block, rest = Block.cut(data[len(BOM) :] if position == 0 and data[: len(BOM)] == BOM else data)
            if len(rest) > MAX_ITEM_BYTES:
                raise SourceError(
                    f"{file_name(file.place)}: {over_limit('a line', len(rest), MAX_ITEM_BYTES)}.",
                    hint="Check that it holds one item a line.",
                )
            position += got
            if len(block):
                yield block
            at(_share(file, position))
    if rest.strip():
        yield Block.of_lines([rest])


def _share(file: SourceFile, position: int) -> int:
    """How many bytes of the file have been read when so much of its content has."""
    return min(file.size_bytes, file.size_bytes * position // max(1, file.content_bytes))


def _as_texts(file: SourceFile, blocks: Blocks, bare: bool) -> Blocks:
    for block in blocks:
        try:
            texts = [decode(line.removesuffix(b"\r")) for line in block.lines()]
        except BadLine as bad:
            raise SourceError(f"{file_name(file.place)}: {bad}.", hint="Convert it to UTF-8.") from bad
        yield Block.of_lines([encode_item(text if bare else {"text": text}, i) for i, text in enumerate(texts)])


def _read_csv(file: SourceFile, kind: str, at: Callable[[int], None]) -> Blocks:
    header = read_header(file, DELIMITERS[kind])
    if header is None:
        return
    with open_ranges(file) as read:
        lines = iter_lines(read, header.stop, file.end, file.end, MAX_ITEM_BYTES)
        records = Records(lines, DELIMITERS[kind], MAX_ITEM_BYTES, header.lines)
        position = header.stop

        def rows() -> Iterator[bytes]:
            nonlocal position
            for record in records:
                reason = record.reason
                if not reason and len(record.fields) != len(header.names):
                    reason = f"it has {len(record.fields)} fields where the header has {len(header.names)}"
                if reason:
                    raise SourceError(
                        f"{file_name(file.place)}:{record.line}: {reason}.", hint="Mend the record, or leave it out."
                    )
                position += record.size
                yield encode_item(dict(zip(header.names, record.fields, strict=True)), record.line)

        for block in gather(rows()):
            yield block
            at(_share(file, position))


def _read_parquet(file: SourceFile, at: Callable[[int], None]) -> Blocks:
    with _open_parquet(file) as opened:
        total, done = max(1, opened.metadata.num_rows), 0

        def rows() -> Iterator[bytes]:
            nonlocal done
            for batch in opened.iter_batches(_PARQUET_ROWS, use_threads=False):
                for row in batch.to_pylist():
                    yield encode_item(row, done)
                    done += 1

        for block in gather(rows()):
            yield block
            at(file.size_bytes * done // total)


@contextlib.contextmanager
def _open_parquet(file: SourceFile) -> Iterator[pq.ParquetFile]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(readable(file.place))
        handle: object = file.place
        if is_url(file.place):
            store, key = locate(file.place)
            handle = stack.enter_context(store.reader(key))
        try:
            yield stack.enter_context(pq.ParquetFile(handle, buffer_size=1 << 20, pre_buffer=False))
        except pa.ArrowInvalid as error:
            raise SourceError(
                f"{file_name(file.place)} is not readable Parquet: {error}.", hint="Fetch or write it again."
            ) from error


def _schema(kind: str, files: Sequence[SourceFile]) -> pa.Schema | None:
    """The schema of a Parquet source; of JSON Lines one that fits a sample from all over it."""
    from shardmill.split.encoding import infer_schema

    if kind == "parquet":
        with _open_parquet(next(f for f in files if f.size_bytes)) as opened:
            return opened.schema_arrow.remove_metadata()
    if kind == "jsonl":
        return infer_schema(sample_rows(files)[1])
    return None
