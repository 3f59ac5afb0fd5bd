"""CSV and TSV. A shard starts and stops at record starts, which reading it verifies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from shardmill.core.errors import SourceError
from shardmill.core.ranges import Range
from shardmill.core.template import TextTemplate
from shardmill.sources.base import MAX_ITEM_BYTES, Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BatchBuilder
from shardmill.sources.columns import build_columns, chosen_types, column_names
from shardmill.sources.content import open_ranges
from shardmill.sources.csv.cuts import find_record_start
from shardmill.sources.csv.records import CsvRecords
from shardmill.sources.cuts import Line, count_lines, count_starts, cut_evenly, iter_lines, weigh
from shardmill.sources.files import BLOCK_BYTES, WINDOW_BYTES, empty_source, file_name
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.origin import no_field
from shardmill.sources.parsing import BOM

DELIMITERS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True, slots=True)
class Header:
    """The first record of a file: its names, the offset of the next record, and the number of lines before that."""

    names: tuple[str, ...]
    stop: int
    lines: int


class CsvSource(FileSource):
    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._max_item_bytes = max_item_bytes
        self._delimiter = DELIMITERS[stat.format]
        self._template = TextTemplate.parse(fields.text)
        self._columns = build_columns(stat, fields)
        self._headers: dict[int, Header | None] = {}

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        found, header = self._stat.files[file], self._header(file)
        if header is None:
            return []
        wanted = cut_evenly(found, header.stop, target_bytes)
        cuts = [header.stop]
        with open_ranges(found) as read:
            for start, stop in wanted[1:]:
                if start <= cuts[-1]:
                    continue
                cut = find_record_start(read, start, stop, found.end, len(header.names), self._delimiter)
                if cut is not None:
                    cuts.append(cut)
        bounds = [*cuts, found.end]
        return [((a, b), weigh(found, a, b)) for a, b in itertools.pairwise(bounds) if a < b]

    def _header(self, index: int) -> Header | None:
        if index not in self._headers:
            self._headers[index] = read_header(self._stat.files[index], self._delimiter)
        return self._headers[index]

    def count_between(self, shard: Shard, later: Shard) -> int:
        header = self._header(shard.file)
        with open_ranges(self._stat.files[shard.file]) as read:
            first = header is not None and shard.start == header.stop
            return count_starts(read, 0 if first else shard.start, later.start)

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file, header = self._stat.files[shard.file], self._header(shard.file)
        if header is None:
            return
        builder = BatchBuilder(self._template, self._columns, self.origins.of(shard))
        lines_before = header.lines if shard.start == header.stop else 0
        with open_ranges(file) as read:
            lines = iter_lines(read, shard.start, shard.stop, shard.stop, self._max_item_bytes)
            records = CsvRecords(lines, self._delimiter, self._max_item_bytes, lines_before)
            for record in records:
                if not builder.has_room_for(record.size):
                    yield builder.take(record.line - 1)
                if record.cut_off and shard.stop < file.end:
                    raise _wrong_cut(file, shard)
                place = shard.start + record.place
                if record.reason:
                    builder.add_bad(record.reason, record.line, record.size, place)
                elif len(record.fields) != len(header.names):
                    reason = f"{_count(len(record.fields))} where the header has {len(header.names)}"
                    builder.add_bad(reason, record.line, record.size, place)
                else:
                    row = dict(zip(header.names, record.fields, strict=True))
                    builder.add(row, record.line, record.size, place)
            if shard.stop < file.end and read(shard.stop - 1, shard.stop) != b"\n":
                raise _wrong_cut(file, shard)
        yield builder.take(records.lines_done)


def _count(fields: int) -> str:
    return "1 field" if fields == 1 else f"{fields} fields"


def _wrong_cut(file: SourceFile, shard: Shard) -> SourceError:
    return SourceError(
        f"{file_name(file.place)}: the cut at byte {shard.stop} is wrong: it falls inside a record. Nothing is lost.",
        hint="Run again with --fresh and one worker, or convert the file to Parquet.",
    )


def read_header(file: SourceFile, delimiter: str) -> Header | None:
    """The header of a file, None if the file is blank."""
    size = file.end
    with open_ranges(file) as read:
        start = len(BOM) if size >= len(BOM) and read(0, len(BOM)) == BOM else 0
        used = [start]

        def counted() -> Iterator[Line]:
            for line in iter_lines(read, start, size, size, BLOCK_BYTES, block_bytes=WINDOW_BYTES):
                used.append(line.size + 1)
                yield line

        records = CsvRecords(counted(), delimiter, BLOCK_BYTES)
        record = next(iter(records), None)
    if record is None:
        return None
    if record.reason:
        raise SourceError(
            f"{file_name(file.place)} has no readable header: {record.reason}.", hint="Convert it to CSV in UTF-8."
        )
    return Header(tuple(record.fields), min(sum(used), size), records.lines_done)


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return CsvSource(stat, fields, max_item_bytes)


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns: text, unless the user chose another type."""
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda file: read_header(file, DELIMITERS[stat.format]), stat.files))
    headers = [(file, header) for file, header in zip(stat.files, found, strict=True) if header]
    if not any(_has_rows(file, header) for file, header in headers):
        raise empty_source(stat.files)
    first, names = headers[0][0], list(headers[0][1].names)
    for file, header in headers[1:]:
        if list(header.names) != names:
            raise SourceError(
                f"{file_name(file.place)} has columns ({', '.join(header.names)}) that differ from "
                f"{file_name(first.place)} ({', '.join(names)}).",
                hint="Give files with the same header, or run them separately.",
            )
    for name in (*TextTemplate.parse(fields.text).names, *column_names(fields)):
        if name not in names:
            raise no_field(name, file_name(first.place), names)
        if names.count(name) > 1:
            raise SourceError(f"{file_name(first.place)} has two columns named {name!r}.", hint="Rename one of them.")
    return {name: chosen_types(fields).get(name, "string") for name in column_names(fields)}


def _has_rows(file: SourceFile, header: Header) -> bool:
    with open_ranges(file) as read:
        for at in range(header.stop, file.end, BLOCK_BYTES):
            block = read(at, min(at + BLOCK_BYTES, file.end))
            if block.strip(b" \r\n"):
                return True
            if not block:
                break
    return False


def extents(stat: SourceStat, shard: Shard, number: int) -> list[Range]:
    """The header and the range."""
    header = read_header(stat.files[number], DELIMITERS[stat.format])
    return [(0, header.stop if header else 0), (shard.start, shard.stop)]


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    """Count lines: only parsing would tell which newlines are quoted. Nothing is read of a file without records."""
    header = read_header(file, DELIMITERS[stat.format])
    if header is None or header.stop >= file.end:
        return 0
    with open_ranges(file) as read:
        return count_lines(read, file.end)


def sample(stat: SourceStat) -> None:
    """Every field is text."""


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    delimiter = DELIMITERS[stat.format]
    header = read_header(file, delimiter)
    if header is None:
        return
    position = header.stop
    with open_ranges(file) as read:
        lines = iter_lines(read, header.stop, file.end, file.end, MAX_ITEM_BYTES)
        for record in CsvRecords(lines, delimiter, MAX_ITEM_BYTES, header.lines):
            reason = record.reason
            if not reason and len(record.fields) != len(header.names):
                reason = f"it has {len(record.fields)} fields where the header has {len(header.names)}"
            if reason:
                raise SourceError(
                    f"{file_name(file.place)}:{record.line}: {reason}.", hint="Fix the record, or remove it."
                )
            position += record.size
            yield dict(zip(header.names, record.fields, strict=True)), position
