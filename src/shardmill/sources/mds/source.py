"""MDS shards. A shard of a run is a range of samples of one file; a compressed file is read whole.

A file has the number of its samples, where each begins and ends, a description of the columns in JSON, and the samples:
the sizes of those values whose encoding has none, then all values.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import SourceError
from shardmill.core.ranges import Range, split_weighted
from shardmill.core.template import TextTemplate
from shardmill.sources.arrow.rows import RowMaker, check_schema, column_types, iter_batch_rows
from shardmill.sources.base import Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BATCH_BYTES, BATCH_ROWS
from shardmill.sources.columns import column_names
from shardmill.sources.content import open_content
from shardmill.sources.files import empty_source, file_name
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.mds import MDS
from shardmill.sources.origin import without_origin

# What each encoding gives; numbers that are written as text are cast from that.
_NUMBERS = {
    "int": pa.int64(),
    **{str(kind): kind for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(kind): kind for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **dict.fromkeys(("float16", "float32"), pa.float32()),
    "float64": pa.float64(),
}
_TEXTS = {
    **dict.fromkeys(("str", "json", "str_decimal"), pa.string()),
    "str_int": pa.int64(),
    "str_float": pa.float64(),
}
_TYPES = {**_NUMBERS, **_TEXTS, "bytes": pa.binary()}
# A description of columns that is longer is none.
_MOST_DESCRIBED_BYTES = 16 << 20


class MdsLayout(NamedTuple):
    """Where samples begin and end, and the name, encoding and size of each column; the size is None if it varies."""

    bounds: NDArray[np.uint32]
    columns: list[tuple[str, str, int | None]]

    @property
    def rows(self) -> int:
        return len(self.bounds) - 1

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read."""
        return pa.schema([pa.field(name, _TYPES[kind]) for name, kind, _ in self.columns if kind in _TYPES])


class MdsSource(FileSource):
    at_once = 16

    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._fields = without_origin(fields, stat.origin)
        self._rows = RowMaker(stat, fields, max_item_bytes)

    def shards(self, target_bytes: int) -> list[Shard]:
        found = super().shards(target_bytes)
        files = [file for file in self._stat.files if file.size_bytes]
        if left := [name for name, kind, _ in read_layout(files[0]).columns if kind not in _TYPES]:
            self.notes = [f"Columns that are no text or numbers are left out: {', '.join(left)}."]
        return found

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        found = self._stat.files[file]
        if not found.size_bytes:
            return []
        layout = read_layout(found)
        _check_columns(found, layout, self._fields)
        if not layout.rows:
            return []
        if found.compression:
            return [((0, layout.rows), max(1, found.content_bytes))]
        sizes = np.diff(layout.bounds.astype(np.int64)).tolist()
        return [((a, b), max(1, sum(sizes[a:b]))) for a, b in split_weighted(sizes, target_bytes)]

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file, rows_done = self._stat.files[shard.file], 0
        weight, origin = shard.weight_bytes / (shard.stop - shard.start), self.origins.of(shard)
        for batch in read_samples(file, (shard.start, shard.stop), self._rows.names):
            yield self._rows.items(batch, rows_done, weight, shard.start, origin)
            rows_done += batch.num_rows


@lru_cache(64)
def read_layout(file: SourceFile) -> MdsLayout:
    with open_content(file) as handle:
        count = int.from_bytes(_read(file, handle, 4), "little")
        if not file.compression and 8 + 4 * count > file.size_bytes:
            raise _unreadable(file, f"it would have {count:,} samples")
        bounds = np.frombuffer(_read(file, handle, 4 * (count + 1)), "<u4")
        described = int(bounds[0]) - 8 - 4 * count
        if not 0 < described <= _MOST_DESCRIBED_BYTES or (np.diff(bounds.astype(np.int64)) < 0).any():
            raise _unreadable(file, "the places of its samples are damaged")
        if not file.compression and bounds[-1] != file.size_bytes:
            raise _unreadable(file, f"its samples end at byte {bounds[-1]:,} of {file.size_bytes:,}")
        try:
            about = json.loads(_read(file, handle, described))
            told = (about["column_names"], about["column_encodings"], about["column_sizes"])
            columns = [(str(name), str(kind), size and int(size)) for name, kind, size in zip(*told, strict=True)]
            version = about["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(file, "its columns are not described") from error
    if version != 2:
        raise _unreadable(file, f"it has version {version}, not 2")
    for name, kind, size in columns:
        if kind in _NUMBERS and size != _dtype(kind).itemsize:
            raise _unreadable(file, f"{name!r} is {kind} of {size} bytes")
    return MdsLayout(bounds, columns)


def read_samples(file: SourceFile, span: Range, names: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The columns with these names of the samples in a range, in batches of limited size."""
    layout = read_layout(file)
    kinds = {name: kind for name, kind, _ in layout.columns if name in names}
    values: dict[str, list[bytes]] = {name: [] for name in kinds}
    rows = size_bytes = 0
    with open_content(file) as handle:
        for sample in range(*span):
            for name, data in _read_values(file, handle, layout, sample, kinds):
                values[name].append(data)
                size_bytes += len(data)
            rows += 1
            if rows == BATCH_ROWS or size_bytes >= BATCH_BYTES:
                yield _make_batch(kinds, values, rows)
                values, rows, size_bytes = {name: [] for name in kinds}, 0, 0
    if rows:
        yield _make_batch(kinds, values, rows)


def _read_values(
    file: SourceFile, handle: IO[bytes], layout: MdsLayout, sample: int, names: Collection[str]
) -> Iterator[tuple[str, bytes]]:
    at, stop = (int(bound) for bound in layout.bounds[sample : sample + 2])
    varying = sum(not size for _, _, size in layout.columns)
    if at + 4 * varying > stop:
        raise _unreadable(file, f"sample {sample + 1:,} is damaged")
    handle.seek(at)
    told = iter(np.frombuffer(_read(file, handle, 4 * varying), "<u4").tolist())
    sizes = [size or next(told) for _, _, size in layout.columns]
    at += 4 * varying
    if at + sum(sizes) != stop:
        raise _unreadable(file, f"sample {sample + 1:,} is damaged")
    starts = itertools.accumulate(sizes, initial=at)
    for (name, _, _), start, size in zip(layout.columns, starts, sizes, strict=False):
        if name in names:
            handle.seek(start)
            yield name, _read(file, handle, size)


def _make_batch(kinds: dict[str, str], values: dict[str, list[bytes]], rows: int) -> pa.RecordBatch:
    if not kinds:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.record_batch({name: _make_array(kind, values[name]) for name, kind in kinds.items()})


def _make_array(kind: str, values: list[bytes]) -> pa.Array:
    if kind in _NUMBERS:
        return pa.array(np.frombuffer(b"".join(values), _dtype(kind))).cast(_NUMBERS[kind])
    found = pa.array(values, pa.binary())
    # Without a look at its characters: a text that is not UTF-8 is a bad row.
    return found.view(pa.string()) if kind in _TEXTS else found


def _dtype(kind: str) -> np.dtype[np.generic]:
    return np.dtype("int64" if kind == "int" else kind).newbyteorder("<")


def _read(file: SourceFile, handle: IO[bytes], size: int) -> bytes:
    data = handle.read(size)
    if len(data) != size:
        raise _unreadable(file, "it ends too early")
    return data


def _check_columns(file: SourceFile, layout: MdsLayout, fields: Fields) -> None:
    """Refuse fields that the file lacks, or that are not read."""
    kinds = {name: kind for name, kind, _ in layout.columns}
    for name in (*TextTemplate.parse(fields.text).names, *column_names(fields)):
        if kinds.get(name, "str") not in _TYPES:
            why = ": unpickling can run code" if kinds[name] == "pkl" else ""
            raise SourceError(
                f"{name!r} in {file_name(file.place)} is {kinds[name]}, which is not read{why}.",
                hint=f"Fields that can be read: {', '.join(layout.schema.names) or 'none'}.",
            )
    check_schema(file, layout.schema, fields)


def _unreadable(file: SourceFile, why: str) -> SourceError:
    return SourceError(
        f"{file_name(file.place)} is not a readable {MDS} shard: {why}.", hint=f"Fetch or write {file.place} again."
    )


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return MdsSource(stat, fields, max_item_bytes)


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns, from the first file with samples."""
    file = _first(stat.files)
    _check_columns(file, read_layout(file), fields)
    return column_types(file, read_layout(file).schema, fields)


def sample(stat: SourceStat) -> pa.Schema:
    return read_layout(_first(stat.files)).schema


def _first(files: Sequence[SourceFile]) -> SourceFile:
    for file in files:
        if file.size_bytes and read_layout(file).rows:
            return file
    raise empty_source(files)


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    return read_layout(file).rows


def extents(stat: SourceStat, shard: Shard, number: int) -> list[Range]:
    """What describes the file, and the samples."""
    bounds = read_layout(stat.files[number]).bounds
    return [(0, int(bounds[0])), (int(bounds[shard.start]), int(bounds[shard.stop]))]


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    layout = read_layout(file)
    batches = read_samples(file, (0, layout.rows), layout.schema.names)
    yield from iter_batch_rows(file, (batch.cast(layout.schema) for batch in batches), layout.rows)
