"""Pickled records: a list of dicts, or a dict of lists. A shard is a range of rows.

A pickle can only be loaded whole, so a process keeps the current one in memory and reads all its shards from it.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from shardmill.core.errors import SourceError
from shardmill.core.ranges import split_evenly
from shardmill.core.template import TextTemplate, kind_of
from shardmill.sources.base import Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BatchBuilder
from shardmill.sources.columns import build_columns
from shardmill.sources.files import check_unchanged, empty_source, file_name, readable
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.parsing import over_limit
from shardmill.sources.pickle.safe import load
from shardmill.sources.pickle.standin import Array, RefusedPickle
from shardmill.sources.sampling import describe_rows
from shardmill.store import locate

MOST_BYTES = 2 << 30
_MOST_VALUES, _DEEPEST = 100_000, 50
_SAMPLE_ROWS = 1000

PickledRecord = Mapping[object, object]


class BadRecord(Exception):
    """A record that cannot be used; the message is the reason."""


class PickledRecords:
    """The rows of a pickle, stored by row or by column."""

    def __init__(self, held: object) -> None:
        self._rows: Sequence[object] = ()
        self._columns: dict[str, Sequence[object]] = {}
        if isinstance(values := _as_list(held), list | tuple):
            self._rows = values
        elif isinstance(held, dict):
            self._columns = {str(name): _as_column(name, values) for name, values in held.items()}
            if len({len(column) for column in self._columns.values()}) > 1:
                lengths = ", ".join(f"{name} {len(c):,}" for name, c in itertools.islice(self._columns.items(), 8))
                raise RefusedPickle(f"its columns have different lengths ({lengths})", "Save complete rows.")
        else:
            raise RefusedPickle(f"it holds {kind_of(held)}", "Save a list of dicts, or a dict of lists.")

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) if self._columns else len(self._rows)

    def row(self, i: int) -> PickledRecord:
        if self._columns:
            return {name: values[i] for name, values in self._columns.items()}
        row = self._rows[i]
        if not isinstance(row, dict):
            raise BadRecord(f"the record is {kind_of(row)}, not a dict")
        return row


def _as_list(value: object) -> object:
    return value.values if isinstance(value, Array) else value


def _as_column(name: object, held: object) -> Sequence[object]:
    values = _as_list(held)
    if not isinstance(name, str) or not isinstance(values, list | tuple):
        raise RefusedPickle(
            f"it is a dict with {kind_of(values)} where each field needs a list",
            "Save a list of dicts, or a dict of lists: list(records.values()).",
        )
    return values


class PickleSource(FileSource):
    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._max_item_bytes = max_item_bytes
        self._template = TextTemplate.parse(fields.text)
        self._columns = build_columns(stat, fields)
        self._names = list(dict.fromkeys((*self._template.names, *(c.name for c in self._columns))))

    def shards(self, target_bytes: int) -> list[Shard]:
        found = super().shards(target_bytes)
        hold_records.cache_clear()
        return found

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        size_bytes, rows = self._stat.files[file].size_bytes, _count(self._stat.files[file])
        parts = split_evenly(0, rows, min(rows, -(-size_bytes // max(target_bytes, 1)))) if rows else []
        return [((start, stop), max(1, size_bytes * (stop - start) // rows)) for start, stop in parts]

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file = self._stat.files[shard.file]
        records = hold_records(file)
        builder = BatchBuilder(self._template, self._columns, self.origins.of(shard))
        for i in range(shard.start, shard.stop):
            try:
                row, reason = self._plain(records.row(i)), ""
            except BadRecord as bad:
                row, reason = {}, str(bad)
            size = sum(len(value.encode(errors="replace")) for value in row.values() if isinstance(value, str))
            if size > self._max_item_bytes:
                reason, size = over_limit("the record", size, self._max_item_bytes), 0
            if not builder.has_room_for(size):
                yield builder.take(i - shard.start)
            if reason:
                builder.add_bad(reason, i - shard.start + 1, place=i)
            else:
                builder.add(row, i - shard.start + 1, size, i)
        check_unchanged(file)
        yield builder.take(shard.stop - shard.start)

    def _plain(self, row: PickledRecord) -> Row:
        return {name: plain(name, row[name]) for name in self._names if name in row}


def plain(name: str, value: object) -> object:
    """Convert the value to JSON types: dates to text, tuples and arrays to lists."""
    left = [_MOST_VALUES]

    def convert(value: object, depth: int) -> object:
        left[0] -= 1
        if depth > _DEEPEST or left[0] < 0:
            raise BadRecord(f"'{name}' is nested too deep or too large")
        match value:
            case None | bool() | int() | float() | str():
                return value
            case list() | tuple():
                return [convert(v, depth + 1) for v in value]
            case Array():
                return convert(value.values, depth)
            case dict() if all(isinstance(key, str) for key in value):
                return {key: convert(v, depth + 1) for key, v in value.items()}
            case datetime.date() | datetime.time():
                return value.isoformat()
            case datetime.timedelta() | decimal.Decimal():
                return str(value)
        raise BadRecord(f"'{name}' is {kind_of(value)}, which a record cannot hold")

    return convert(value, 0)


@lru_cache(1)
def hold_records(file: SourceFile) -> PickledRecords:
    if file.size_bytes > MOST_BYTES:
        raise SourceError(
            f"{file_name(file.place)} is {file.size_bytes / 2**30:.1f} GiB; each worker loads a pickle whole.",
            hint="Save the records as Parquet or JSON Lines, which are read piece by piece.",
        )
    store, key = locate(file.place)
    try:
        with readable(file.place), store.reader(key) as handle:
            return PickledRecords(load(handle, file.size_bytes))
    except RefusedPickle as refused:
        raise SourceError(
            f"{file_name(file.place)} cannot be read as pickled records: {refused}.",
            hint=refused.hint or f"Fetch or write {file.place} again.",
        ) from None


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    return _count(file)


def _count(file: SourceFile) -> int:
    return len(hold_records(file)) if file.size_bytes else 0


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return PickleSource(stat, fields, max_item_bytes)


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns in a sample of the records."""
    return describe_rows(*_sample_files(stat.files), fields)


def sample(stat: SourceStat) -> list[Row]:
    return _sample_files(stat.files)[1]


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    """Yield all records, converted to JSON types. Only this format is loaded whole."""
    records = hold_records(file)
    for i in range(len(records)):
        try:
            row = {str(name): plain(str(name), value) for name, value in records.row(i).items()}
        except BadRecord as bad:
            raise SourceError(
                f"{file_name(file.place)}: record {i + 1:,}: {bad}.", hint="Fix the record, or remove it."
            ) from bad
        yield row, file.size_bytes * (i + 1) // len(records)
    hold_records.cache_clear()


def _sample_files(files: Sequence[SourceFile]) -> tuple[SourceFile, list[Row]]:
    """The first file with records, and records spread over it."""
    for file in files:
        if not _count(file):
            continue
        rows, reason = _sample(hold_records(file))
        if rows:
            return file, rows
        raise SourceError(
            f"{file_name(file.place)} contains no records: {reason}.",
            hint="Save a list of dicts, or a dict of lists.",
        )
    raise empty_source(files)


def _sample(records: PickledRecords) -> tuple[list[Row], str]:
    rows: list[Row] = []
    reason = ""
    for i in range(0, len(records), max(1, len(records) // _SAMPLE_ROWS)):
        try:
            rows.append(_readable(records.row(i)))
        except BadRecord as bad:
            reason = str(bad)
    return rows, reason


def _readable(row: PickledRecord) -> Row:
    """A row for the sample: values that a record cannot hold become None."""
    found: Row = {}
    for name, value in row.items():
        try:
            found[str(name)] = plain(str(name), value)
        except BadRecord:
            found[str(name)] = None
    return found
