"""Parquet. A shard is a run of row groups of one file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.errors import SourceError, UsageError
from shardmill.core.ranges import split_weighted
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
from shardmill.sources.files import SEEK_BUFFER_BYTES, empty_source, file_name, readable, seekable
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.origin import without_origin
from shardmill.sources.statistics import GroupFilter
from shardmill.sources.tables.columns import FileColumns
from shardmill.store import is_url
from shardmill.store.parts import damaged, open_part

_SKIPPED_ROWS = 8192


class ParquetSource(FileSource):
    at_once = 16

    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._fields = without_origin(fields, stat.origin)
        self._rows = RowMaker(stat, fields, max_item_bytes)

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        weights = self._group_weights(self._stat.files[file])
        return [((start, stop), sum(weights[start:stop])) for start, stop in split_weighted(weights, target_bytes)]

    def count_between(self, shard: Shard, later: Shard) -> int:
        with open_parquet(self._stat.files[shard.file]) as parquet:
            return sum(parquet.metadata.row_group(i).num_rows for i in range(shard.start, later.start))

    def _group_weights(self, file: SourceFile) -> list[int]:
        if not file.size_bytes:
            return []
        with open_parquet(file) as parquet:
            columns = FileColumns(file, parquet.schema_arrow)
            check_schema(file, columns.schema, self._fields)
            columns.stored(self._rows.names)
            footer = parquet.metadata
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        return [sum(g.column(i).total_compressed_size for i in range(g.num_columns)) for g in groups]

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file = self._stat.files[shard.file]
        names, rows_done, origin = self._rows.names, 0, self.origins.of(shard)
        with open_parquet(file) as parquet:
            groups = range(shard.start, shard.stop)
            first = sum(parquet.metadata.row_group(i).num_rows for i in range(shard.start))
            footers = [parquet.metadata.row_group(i) for i in groups]
            weight = shard.weight_bytes / max(1, sum(g.num_rows for g in footers))
            columns = FileColumns(file, parquet.schema_arrow)
            stored = columns.stored(names)
            rows = _rows_in_batch(footers, stored)
            judged = self._fields.where and columns.are_stored(names)
            where = GroupFilter(self._fields.where, self._stat.columns, parquet) if judged else None
            for group, footer in zip(groups, footers, strict=True):
                if where is not None and not where.can_hold(group):
                    for at in range(0, footer.num_rows, _SKIPPED_ROWS):
                        yield self._rows.skipped(min(_SKIPPED_ROWS, footer.num_rows - at), rows_done, weight, first)
                        rows_done += min(_SKIPPED_ROWS, footer.num_rows - at)
                    continue
                for batch in _read_groups(file, parquet, [group], rows, stored):
                    yield self._rows.items(columns.shape(batch, names), rows_done, weight, first, origin)
                    rows_done += batch.num_rows


def _read_groups(
    file: SourceFile, parquet: pq.ParquetFile, groups: Iterable[int], rows: int, names: list[str]
) -> Iterator[pa.RecordBatch]:
    for group in groups:
        batches = parquet.iter_batches(rows, row_groups=[group], columns=names, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise _unreadable(file, error, group) from error
            if batch is None:
                break
            if batch.num_rows:
                yield batch


@contextlib.contextmanager
def open_parquet(file: SourceFile) -> Iterator[pq.ParquetFile]:
    """Open the file to read it page by page, so that a large row group does not fill the memory."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(readable(file.place))
        try:
            handle = stack.enter_context(seekable(file))
            how = {"buffer_size": SEEK_BUFFER_BYTES, "pre_buffer": False}
            if file.run:
                footer = handle if is_url(file.place) else stack.enter_context(open(file.place, "rb"))
                opened, _ = open_part(footer, file.place, file.edges.rpartition(":")[2], handle, **how)
            else:
                opened = pq.ParquetFile(handle, page_checksum_verification=True, **how)
            yield stack.enter_context(opened)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, FileNotFoundError | PermissionError):
                raise
            raise _unreadable(file, error) from error


def _unreadable(file: SourceFile, error: Exception, group: int | None = None) -> UsageError:
    if file.run:
        return damaged(file.place, str(error), SourceError)
    where = "" if group is None else f" in row group {group}"
    reason = str(error).partition("\n")[0].rstrip(".")
    return SourceError(
        f"{file_name(file.place)} is not readable Parquet{where}: {reason}.",
        hint=f"Fetch or write {file.place} again.",
    )


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    with open_parquet(file) as parquet:
        return int(parquet.metadata.num_rows)


def _rows_in_batch(groups: Sequence[pq.RowGroupMetaData], names: Sequence[str]) -> int:
    rows = size = 0
    for group in groups:
        rows += group.num_rows
        for i in range(group.num_columns):
            column = group.column(i)
            if column.path_in_schema.partition(".")[0] in names:
                size += column.total_uncompressed_size
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(size, 1)))


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return ParquetSource(stat, fields, max_item_bytes)


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns, from the schema of the first file with rows."""
    for file in stat.files:
        if not file.size_bytes:
            continue
        with open_parquet(file) as parquet:
            if not parquet.metadata.num_rows:
                continue
            schema = FileColumns(file, parquet.schema_arrow).schema
        return column_types(file, schema, fields)
    raise empty_source(stat.files)


def sample(stat: SourceStat) -> pa.Schema:
    file = next(f for f in stat.files if f.size_bytes)
    with open_parquet(file) as parquet:
        return plain_schema(FileColumns(file, parquet.schema_arrow).schema)


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    with open_parquet(file) as parquet:
        columns = FileColumns(file, parquet.schema_arrow)
        names = check_names(file, columns.schema)
        stored = columns.stored(names) if file.columns else None
        batches = parquet.iter_batches(BATCH_ROWS, columns=stored, use_threads=False)
        shaped = (columns.shape(batch, names) for batch in batches)
        yield from iter_batch_rows(file, shaped, parquet.metadata.num_rows)
