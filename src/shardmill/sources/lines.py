"""JSON Lines and plain text. A shard owns the lines that start inside its byte range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from shardmill.core.ranges import Range
from shardmill.core.template import TextTemplate
from shardmill.sources.base import Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BatchBuilder
from shardmill.sources.columns import build_columns
from shardmill.sources.content import open_ranges
from shardmill.sources.cuts import count_lines, count_starts, cut_evenly, find_line_start, iter_lines, weigh
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.parsing import BOM, BadLine, over_limit, parse_json, parse_text
from shardmill.sources.sampling import describe_lines, describe_text, sample_rows

ParseLine = Callable[[bytes], Mapping[str, object]]


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    find = describe_lines if stat.format == "jsonl" else describe_text
    return find(stat.files, fields)


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return LineSource(stat, fields, max_item_bytes)


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    with open_ranges(file) as read:
        return count_lines(read, file.end)


def sample(stat: SourceStat) -> list[Row] | None:
    return sample_rows(stat.files)[1] if stat.format == "jsonl" else None


def extents(stat: SourceStat, shard: Shard, number: int) -> list[Range]:
    """From the byte before the range, which shows whether a line starts there, to the end of the last line."""
    file = stat.files[number]
    with open_ranges(file) as read:
        stop = find_line_start(read, shard.stop, file.end) or file.end
    return [(max(0, shard.start - 1), stop)]


class LineSource(FileSource):
    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._max_item_bytes = max_item_bytes
        self._parse: ParseLine = parse_json if stat.format == "jsonl" else parse_text
        self._template = TextTemplate.parse(fields.text) if stat.format == "jsonl" else text_template(fields.text)
        self._columns = build_columns(stat, fields)

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        found = self._stat.files[file]
        return [((start, stop), weigh(found, start, stop)) for start, stop in cut_evenly(found, 0, target_bytes)]

    def count_between(self, shard: Shard, later: Shard) -> int:
        with open_ranges(self._stat.files[shard.file]) as read:
            return count_starts(read, shard.start, later.start)

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file = self._stat.files[shard.file]
        builder, lines_done = BatchBuilder(self._template, self._columns, self.origins.of(shard)), 0
        with open_ranges(file) as read:
            start = find_line_start(read, shard.start, shard.stop)
            if start is None:
                return
            place = start
            for line in iter_lines(read, start, shard.stop, file.end, self._max_item_bytes):
                data = line.data.removeprefix(BOM) if line.data and start + lines_done == 0 else line.data
                if data is None or data.strip():
                    if not builder.has_room_for(len(data or b"")):
                        yield builder.take(lines_done)
                    if data is None:
                        reason = over_limit("the line", line.size, self._max_item_bytes)
                        builder.add_bad(reason, lines_done + 1, place=place)
                    else:
                        self._add(builder, data, lines_done + 1, place)
                lines_done += 1
                place += line.size + 1
        yield builder.take(lines_done)

    def _add(self, builder: BatchBuilder, data: bytes, line: int, place: int) -> None:
        try:
            row = self._parse(data)
        except BadLine as bad:
            builder.add_bad(str(bad), line, len(data), place)
        else:
            builder.add(row, line, len(data), place)


def text_template(spec: str) -> TextTemplate:
    """The template for plain text: a single field of any name is the line; a template may use {text}."""
    template = TextTemplate.parse(spec)
    return TextTemplate.parse("text") if template.single else template
