"""Avro. A shard is a run of blocks of one file, by the bytes where they begin and end."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from shardmill.core.errors import SourceError
from shardmill.core.ranges import Range
from shardmill.sources.arrow.rows import (
    RowMaker,
    check_names,
    check_schema,
    column_types,
    iter_batch_rows,
    plain_schema,
)
from shardmill.sources.avro.blocks import AvroBlocks, BadBlocks
from shardmill.sources.avro.types import Columns
from shardmill.sources.base import Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BATCH_BYTES, BATCH_ROWS
from shardmill.sources.files import SEEK_BUFFER_BYTES, empty_source, file_name, open_packed
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.origin import without_origin
from shardmill.sources.tables.columns import FileColumns
from shardmill.store import RangeFile, ReadRange, is_url

# What tells the rows of a block apart, beside the byte where it begins.
_ROW_BITS = 20


class AvroSource(FileSource):
    at_once = 16

    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._fields = without_origin(fields, stat.origin)
        self._rows = RowMaker(stat, fields, max_item_bytes)

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        found = self._stat.files[file]
        if not found.size_bytes:
            return []
        with open_avro(found) as blocks:
            columns = _columns(found, blocks)
            check_schema(found, columns.schema, self._fields)
            columns.stored(self._rows.names)
            blocks.check_end()
            return [((start, stop), stop - start) for start, stop in blocks.cut(target_bytes)]

    def count_between(self, shard: Shard, later: Shard) -> int:
        with open_avro(self._stat.files[shard.file]) as blocks:
            return sum(block.rows for block in blocks.walk(shard.start, later.start))

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file, names, rows_done, origin = self._stat.files[shard.file], self._rows.names, 0, self.origins.of(shard)
        with open_avro(file) as blocks:
            columns = _columns(file, blocks)
            for batch, weight, places in _read_blocks(blocks, shard.start, shard.stop, columns.stored(names)):
                items = self._rows.items(columns.shape(batch, names), rows_done, weight, 0, origin)
                yield replace(items, places=places)
                rows_done += batch.num_rows


def _columns(file: SourceFile, blocks: AvroBlocks) -> FileColumns:
    return FileColumns(file, Columns(blocks.header.schema).arrow)


def _read_blocks(
    blocks: AvroBlocks, start: int, stop: int, names: list[str]
) -> Iterator[tuple[pa.RecordBatch, float, list[int]]]:
    """The rows of the blocks in batches of limited size, each with bytes of the file per row and the rows' places."""
    columns = Columns(blocks.header.schema)
    records, places, size, weight = list[dict[str, object]](), list[int](), 0, 0.0
    for block in blocks.walk(start, stop):
        for i, (record, record_bytes) in enumerate(blocks.records(block, columns.schema)):
            if records and (len(records) == BATCH_ROWS or size + record_bytes > BATCH_BYTES):
                yield _batch(columns, records, names), weight / len(records), places
                records, places, size, weight = [], [], 0, 0.0
            records.append(record)
            places.append((block.at << _ROW_BITS) + i)
            size, weight = size + record_bytes, weight + (block.end - block.at) / block.rows
    if records:
        yield _batch(columns, records, names), weight / len(records), places


def _batch(columns: Columns, records: list[dict[str, object]], names: list[str]) -> pa.RecordBatch:
    try:
        return columns.batch(records, names)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise BadBlocks(f"a record has a value that its type cannot hold ({error})") from error


@contextlib.contextmanager
def open_avro(file: SourceFile) -> Iterator[AvroBlocks]:
    with open_packed(file) as read:
        try:
            yield AvroBlocks(_buffered(read, file.size_bytes) if is_url(file.place) else read, file.size_bytes)
        except BadBlocks as error:
            raise SourceError(
                f"{file_name(file.place)} is not readable Avro: {error}.", hint=f"Fetch or write {file.place} again."
            ) from error


def _buffered(read: ReadRange, size: int) -> ReadRange:
    """Reads ahead: blocks are small, and a store answers few requests in a second."""
    handle = io.BufferedReader(RangeFile(read, size), SEEK_BUFFER_BYTES)

    def take(start: int, stop: int) -> bytes:
        handle.seek(start)
        return handle.read(stop - start)

    return take


def _count(blocks: AvroBlocks, file: SourceFile) -> int:
    return sum(block.rows for block in blocks.walk(blocks.header.size, file.size_bytes))


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    with open_avro(file) as blocks:
        return _count(blocks, file)


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return AvroSource(stat, fields, max_item_bytes)


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns, from the schema of the first file with rows."""
    for file in stat.files:
        if not file.size_bytes:
            continue
        with open_avro(file) as blocks:
            blocks.check_end()
            if any(block.rows for block in blocks.walk(blocks.header.size, file.size_bytes)):
                return column_types(file, _columns(file, blocks).schema, fields)
    raise empty_source(stat.files)


def sample(stat: SourceStat) -> pa.Schema:
    file = next(f for f in stat.files if f.size_bytes)
    with open_avro(file) as blocks:
        return plain_schema(_columns(file, blocks).schema)


def extents(stat: SourceStat, shard: Shard, number: int) -> list[Range]:
    """The header and the blocks."""
    with open_avro(stat.files[number]) as blocks:
        return [(0, blocks.header.size), (shard.start, shard.stop)]


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    with open_avro(file) as blocks:
        columns = _columns(file, blocks)
        names = check_names(file, columns.schema)
        found = _read_blocks(blocks, blocks.header.size, file.size_bytes, columns.stored(names))
        shaped = (columns.shape(batch, names) for batch, _, _ in found)
        yield from iter_batch_rows(file, shaped, _count(blocks, file))
