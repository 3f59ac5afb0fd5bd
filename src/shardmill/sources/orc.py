"""ORC. A shard is a run of stripes of one file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
from pyarrow import orc

from shardmill.core.errors import SourceError
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
from shardmill.sources.files import empty_source, file_name, readable, seekable
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.origin import without_origin


class OrcSource(FileSource):
    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._fields = without_origin(fields, stat.origin)
        self._rows = RowMaker(stat, fields, max_item_bytes)

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        if not self._stat.files[file].size_bytes:
            return []
        with open_orc(self._stat.files[file]) as opened:
            check_schema(self._stat.files[file], opened.schema, self._fields)
            stripes, size_bytes = opened.nstripes, opened.content_length
        weights = [max(1, size_bytes // max(1, stripes))] * stripes
        return [((start, stop), sum(weights[start:stop])) for start, stop in split_weighted(weights, target_bytes)]

    def count_between(self, shard: Shard, later: Shard) -> int:
        return sum(_stripe_rows(self._stat.files[shard.file])[shard.start : later.start])

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file = self._stat.files[shard.file]
        counts, rows_done, origin = _stripe_rows(file), 0, self.origins.of(shard)
        first = sum(counts[: shard.start])
        weight = shard.weight_bytes / max(1, sum(counts[shard.start : shard.stop]))
        with open_orc(file) as opened:
            for stripe in range(shard.start, shard.stop):
                for batch in _read_stripe(file, opened, stripe, self._rows.names, counts[stripe]):
                    yield self._rows.items(batch, rows_done, weight, first, origin)
                    rows_done += batch.num_rows


def _read_stripe(
    file: SourceFile, opened: orc.ORCFile, stripe: int, names: list[str] | None, rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a stripe in batches of limited size; it is decoded whole."""
    if names == []:
        whole = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    else:
        try:
            whole = opened.read_stripe(stripe, columns=names)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _unreadable(file, error, stripe) from error
    at_once = max(1, min(BATCH_ROWS, BATCH_BYTES * whole.num_rows // max(whole.nbytes, 1)))
    for start in range(0, whole.num_rows, at_once):
        yield whole.slice(start, at_once)


@lru_cache(16)
def _stripe_rows(file: SourceFile) -> list[int]:
    """The rows of each stripe, which only a column tells; the narrowest is read."""
    with open_orc(file) as opened:
        if opened.nstripes == 1:
            return [opened.nrows]
        narrow = min(opened.schema, key=lambda field: field.type.num_fields or not pa.types.is_integer(field.type))
        return [opened.read_stripe(i, columns=[narrow.name]).num_rows for i in range(opened.nstripes)]


@contextlib.contextmanager
def open_orc(file: SourceFile) -> Iterator[orc.ORCFile]:
    with readable(file.place), seekable(file) as handle:
        try:
            yield orc.ORCFile(handle)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, FileNotFoundError | PermissionError):
                raise
            raise _unreadable(file, error) from error


def _unreadable(file: SourceFile, error: Exception, stripe: int | None = None) -> SourceError:
    where = "" if stripe is None else f" in stripe {stripe}"
    reason = str(error).partition("\n")[0].rstrip(".")
    return SourceError(
        f"{file_name(file.place)} is not readable ORC{where}: {reason}.", hint=f"Fetch or write {file.place} again."
    )


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    with open_orc(file) as opened:
        return int(opened.nrows)


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return OrcSource(stat, fields, max_item_bytes)


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns, from the schema of the first file with rows."""
    for file in stat.files:
        if not file.size_bytes:
            continue
        with open_orc(file) as opened:
            if opened.nrows:
                return column_types(file, opened.schema, fields)
    raise empty_source(stat.files)


def sample(stat: SourceStat) -> pa.Schema:
    with open_orc(next(f for f in stat.files if f.size_bytes)) as opened:
        return plain_schema(opened.schema)


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    with open_orc(file) as opened:
        check_names(file, opened.schema)
        counts = _stripe_rows(file)
        batches = (b for i, rows in enumerate(counts) for b in _read_stripe(file, opened, i, None, rows))
        yield from iter_batch_rows(file, batches, opened.nrows)
