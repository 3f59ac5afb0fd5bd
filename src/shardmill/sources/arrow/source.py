"""Arrow IPC, files and streams. A shard is a range of rows of one file, cut between batches if they are small."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from shardmill.core.errors import SourceError
from shardmill.core.ranges import split_evenly, split_weighted
from shardmill.sources.arrow.messages import END, Message, MessageIndex, index_file
from shardmill.sources.arrow.rows import (
    RowMaker,
    check_names,
    check_schema,
    column_types,
    iter_batch_rows,
    plain_schema,
)
from shardmill.sources.base import Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BATCH_BYTES, BATCH_ROWS
from shardmill.sources.content import open_ranges
from shardmill.sources.files import empty_source, file_name, readable
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.origin import without_origin
from shardmill.store import is_url

# Each part of a remote batch downloads the whole batch.
_MOST_PARTS_AFAR = 16

Take = Callable[[int, int], pa.Buffer]


class ArrowSource(FileSource):
    at_once = 16

    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._fields = without_origin(fields, stat.origin)
        self._rows = RowMaker(stat, fields, max_item_bytes)

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        found = self._stat.files[file]
        if not found.size_bytes:
            return []
        check_schema(found, read_schema(found), self._fields)
        most_parts = _MOST_PARTS_AFAR if is_url(found.place) else sys.maxsize
        return cut_batches(index_file(found).batches, target_bytes, most_parts)

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file = self._stat.files[shard.file]
        rows_done, weight = 0, shard.weight_bytes / (shard.stop - shard.start)
        origin = self.origins.of(shard)
        for batch in read_rows(file, shard.start, shard.stop, self._rows.names, weight):
            yield self._rows.items(batch, rows_done, weight, shard.start, origin)
            rows_done += batch.num_rows


def cut_batches(batches: Sequence[Message], target_bytes: int, most_parts: int) -> list[Piece]:
    """Cut into ranges of rows of about `target_bytes`, with weights: whole batches, or parts of a larger batch."""
    pieces: list[Piece] = []
    row = 0
    for first, last in split_weighted([b.stop - b.start for b in batches], target_bytes):
        rows = sum(b.rows for b in batches[first:last])
        weight = sum(b.stop - b.start for b in batches[first:last])
        parts = 1 if last - first > 1 else min(rows, most_parts, -(-weight // max(target_bytes, 1)))
        pieces += [(part, max(1, weight // parts)) for part in split_evenly(row, row + rows, parts)]
        row += rows
    return pieces


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return ArrowSource(stat, fields, max_item_bytes)


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns, from the schema of the first file with rows."""
    for file in stat.files:
        if file.size_bytes and index_file(file).rows:
            return column_types(file, read_schema(file), fields)
    raise empty_source(stat.files)


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    return index_file(file).rows


def sample(stat: SourceStat) -> pa.Schema:
    return plain_schema(read_schema(next(f for f in stat.files if f.size_bytes)))


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    names = check_names(file, read_schema(file))
    if rows := index_file(file).rows:
        batches = read_rows(file, 0, rows, names, file.size_bytes / rows)
        yield from iter_batch_rows(file, batches, rows)


def read_schema(file: SourceFile) -> pa.Schema:
    with _explained(file), _open(file, [index_file(file).schema]) as stream:
        schema = pa.ipc.open_stream(stream).schema
        # Decodes the names, so that names that are not UTF-8 in a damaged file are reported here.
        _ = schema.names
        return schema


def read_rows(
    file: SourceFile, start: int, stop: int, names: Sequence[str], row_bytes: float
) -> Iterator[pa.RecordBatch]:
    """Read rows [start, stop) with the named columns, in batches of limited size."""
    step = max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1))))
    for batch in _read_batches(file, start, stop, names):
        for at in range(0, batch.num_rows, step):
            piece = batch.slice(at, step)
            _check(file, piece)
            yield piece


def _read_batches(file: SourceFile, start: int, stop: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    chosen, row = _choose(index_file(file), start, stop)
    schema = read_schema(file)
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(n) for n in names], use_threads=False)
    with _explained(file), _open(file, chosen) as stream:
        for batch in pa.ipc.open_stream(stream, options=options):
            skip = max(start - row, 0)
            yield batch.slice(skip, min(stop - row, batch.num_rows) - skip)
            row += batch.num_rows
    if row < stop:
        raise _unreadable(file, f"row {row + 1:,} is missing")


def _choose(index: MessageIndex, start: int, stop: int) -> tuple[list[Message], int]:
    """The messages to read for rows [start, stop), including dictionaries, and the first row of the first batch."""
    chosen, first, row = [index.schema], start, 0
    for message in index.messages:
        if row >= stop:
            break
        if not message.is_batch or (message.rows and row + message.rows > start):
            if message.is_batch and row <= start:
                first = row
            chosen.append(message)
        row += message.rows
    return chosen, first


class _Spliced:
    """Some messages of a file as one stream for Arrow to read; a local file is not copied."""

    closed = False

    def __init__(self, messages: Sequence[Message], take: Take) -> None:
        self._messages, self._take = messages, take
        self._next, self._at = 0, messages[0].start
        self._end = END

    def read_buffer(self, count: int) -> pa.Buffer:
        while self._next < len(self._messages):
            message = self._messages[self._next]
            if self._at < message.stop:
                stop = min(self._at + count, message.stop)
                start, self._at = self._at, stop
                return self._take(start, stop)
            self._next += 1
            if self._next < len(self._messages):
                self._at = self._messages[self._next].start
        data, self._end = self._end[:count], self._end[count:]
        return pa.py_buffer(data)

    def read(self, count: int) -> bytes:
        return bytes(self.read_buffer(count))

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _open(file: SourceFile, messages: Sequence[Message]) -> Iterator[pa.PythonFile]:
    if is_url(file.place):
        with open_ranges(file) as read:
            yield pa.PythonFile(_Spliced(messages, lambda start, stop: pa.py_buffer(read(start, stop))), mode="r")
        return
    with readable(file.place), pa.memory_map(file.place) as mapped:

        def take(start: int, stop: int) -> pa.Buffer:
            mapped.seek(start)
            return mapped.read_buffer(stop - start)

        yield pa.PythonFile(_Spliced(messages, take), mode="r")


@contextlib.contextmanager
def _explained(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, MemoryError, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from error


def _check(file: SourceFile, batch: pa.RecordBatch) -> None:
    """Refuse offsets outside the batch; text that is not UTF-8 only makes a bad row."""
    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise _unreadable(file, error) from error


def _unreadable(file: SourceFile, error: object) -> SourceError:
    reason = str(error).partition("\n")[0].rstrip(".")
    return SourceError(
        f"{file_name(file.place)} is not readable Arrow: {reason}.", hint=f"Fetch or write {file.place} again."
    )
