"""Formats whose files can only be loaded whole, as pickles and spreadsheets. A shard is a range of rows.

A process keeps the records of the current file in memory and reads all its shards from them.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Protocol

from shardmill.core.errors import SourceError
from shardmill.core.ranges import split_evenly
from shardmill.core.template import TextTemplate, kind_of
from shardmill.sources.base import Fields, ItemBatch, Row, Shard, SourceFile, SourceStat
from shardmill.sources.batches import BatchBuilder
from shardmill.sources.columns import build_columns
from shardmill.sources.files import check_unchanged, empty_source, file_name
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.parsing import over_limit
from shardmill.sources.sampling import describe_rows

MOST_BYTES = 2 << 30
_MOST_VALUES, _DEEPEST = 100_000, 50
_SAMPLE_ROWS = 1000


class BadRecord(Exception):
    """A record that cannot be used; the message is the reason."""


class Records(Protocol):
    """The rows of a file."""

    def __len__(self) -> int: ...
    def row(self, i: int, names: Collection[str] | None = None) -> dict[str, object]:
        """A row with these fields, or all it has; raises BadRecord if it is none."""


class WholeReader:
    """Reads a format whose files `load` loads; `what` are its records, and `save` is how to save some."""

    def __init__(self, load: Callable[[SourceFile], Records], what: str, save: str) -> None:
        self._what, self._save = what, save

        @lru_cache(1)
        def hold(file: SourceFile) -> Records:
            if file.size_bytes > MOST_BYTES:
                raise SourceError(
                    f"{file_name(file.place)} is {file.size_bytes / 2**30:.1f} GiB; each worker loads {what} whole.",
                    hint="Save the records as Parquet or JSON Lines, which are read piece by piece.",
                )
            return load(file)

        self.hold, self.let_go = hold, hold.cache_clear

    def open_source(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> WholeSource:
        return WholeSource(self, stat, fields, max_item_bytes)

    def describe(self, stat: SourceStat, fields: Fields) -> dict[str, str]:
        """The types of the id and kept columns in a sample of the records."""
        return describe_rows(*self._sample_files(stat.files), fields)

    def sample(self, stat: SourceStat) -> list[Row]:
        return self._sample_files(stat.files)[1]

    def count_rows(self, stat: SourceStat, file: SourceFile) -> int:
        return len(self.hold(file)) if file.size_bytes else 0

    def iter_rows(self, stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
        """Yield all records, converted to JSON types."""
        records = self.hold(file)
        for i in range(len(records)):
            try:
                row = {str(name): plain(str(name), value) for name, value in records.row(i).items()}
            except BadRecord as bad:
                raise SourceError(
                    f"{file_name(file.place)}: record {i + 1:,}: {bad}.", hint="Fix the record, or remove it."
                ) from bad
            yield row, file.size_bytes * (i + 1) // len(records)
        self.let_go()

    def _sample_files(self, files: Sequence[SourceFile]) -> tuple[SourceFile, list[Row]]:
        """The first file with records, and records spread over it."""
        for file in files:
            if not file.size_bytes or not len(self.hold(file)):
                continue
            rows, reason = _sample(self.hold(file))
            if rows:
                return file, rows
            raise SourceError(f"{file_name(file.place)} contains no records: {reason}.", hint=self._save)
        raise empty_source(files)


class WholeSource(FileSource):
    def __init__(self, reader: WholeReader, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._reader, self._max_item_bytes = reader, max_item_bytes
        self._template = TextTemplate.parse(fields.text)
        self._columns = build_columns(stat, fields)
        self._names = list(dict.fromkeys((*self._template.names, *(c.name for c in self._columns))))

    def shards(self, target_bytes: int) -> list[Shard]:
        found = super().shards(target_bytes)
        self._reader.let_go()
        return found

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        size_bytes = self._stat.files[file].size_bytes
        rows = self._reader.count_rows(self._stat, self._stat.files[file])
        parts = split_evenly(0, rows, min(rows, -(-size_bytes // max(target_bytes, 1)))) if rows else []
        return [((start, stop), max(1, size_bytes * (stop - start) // rows)) for start, stop in parts]

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file = self._stat.files[shard.file]
        records = self._reader.hold(file)
        builder = BatchBuilder(self._template, self._columns, self.origins.of(shard))
        for i in range(shard.start, shard.stop):
            try:
                found = records.row(i, self._names)
                row, reason = {name: plain(name, value) for name, value in found.items()}, ""
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


def plain(name: str, value: object) -> object:
    """Convert the value to JSON types: dates to text, tuples to lists."""
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
            case dict() if all(isinstance(key, str) for key in value):
                return {key: convert(v, depth + 1) for key, v in value.items()}
            case datetime.date() | datetime.time():
                return value.isoformat()
            case datetime.timedelta() | decimal.Decimal():
                return str(value)
        if isinstance(values := getattr(value, "values", None), list):
            return convert(values, depth)
        raise BadRecord(f"'{name}' is {kind_of(value)}, which a record cannot hold")

    return convert(value, 0)


def _sample(records: Records) -> tuple[list[Row], str]:
    rows: list[Row] = []
    reason = ""
    for i in range(0, len(records), max(1, len(records) // _SAMPLE_ROWS)):
        try:
            rows.append(_readable(records.row(i)))
        except BadRecord as bad:
            reason = str(bad)
    return rows, reason


def _readable(row: dict[str, object]) -> Row:
    """A row for the sample: values that a record cannot hold become None."""
    found: Row = {}
    for name, value in row.items():
        try:
            found[str(name)] = plain(str(name), value)
        except BadRecord:
            found[str(name)] = None
    return found
