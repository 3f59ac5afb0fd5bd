"""Files that are one JSON array of objects. A shard starts and stops between elements, found in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shardmill.core.errors import SourceError
from shardmill.core.ranges import Range, split_weighted
from shardmill.core.template import TextTemplate
from shardmill.sources.base import MAX_ITEM_BYTES, Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BatchBuilder
from shardmill.sources.chunks import HEAD, TAIL
from shardmill.sources.columns import build_columns
from shardmill.sources.content import open_ranges
from shardmill.sources.cuts import Line, Tail, finest_cut
from shardmill.sources.files import BLOCK_BYTES, WINDOW_BYTES, empty_source, file_name
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.json.scan import ElementScanner
from shardmill.sources.parsing import BOM, BadLine, over_limit, parse_json
from shardmill.sources.sampling import describe_rows
from shardmill.store import ReadRange

_MOST_CUTS = 1 << 16
_SAMPLE_BYTES, _SAMPLE_ROWS = 32 << 20, 500


@dataclass(frozen=True, slots=True)
class Layout:
    """Starts of at most some thousands of elements, evenly spread; where the array closes; the number of rows."""

    starts: tuple[int, ...]
    close: int
    rows: int

    def cut(self, target_bytes: int) -> list[Range]:
        if not self.rows:
            return []
        bounds = [*self.starts, self.close]
        sizes = [b - a for a, b in itertools.pairwise(bounds)]
        return [(bounds[first], bounds[last]) for first, last in split_weighted(sizes, target_bytes)]


class JsonArraySource(FileSource):
    at_once = 4

    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._max_item_bytes = max_item_bytes
        self._template = TextTemplate.parse(fields.text)
        self._columns = build_columns(stat, fields)

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        found = self._stat.files[file]
        cuts = find_layout(found).cut(finest_cut(found, target_bytes))
        return [((start, stop), stop - start) for start, stop in cuts]

    def count_between(self, shard: Shard, later: Shard) -> int:
        with open_ranges(self._stat.files[shard.file]) as read:
            return sum(1 for _ in iter_elements(read, shard.start, later.start, self._max_item_bytes))

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file = self._stat.files[shard.file]
        builder = BatchBuilder(self._template, self._columns, self.origins.of(shard))
        rows, place = 0, shard.start
        with open_ranges(file) as read:
            for element in iter_elements(read, shard.start, shard.stop, self._max_item_bytes):
                if not builder.has_room_for(len(element.data or b"")):
                    yield builder.take(rows)
                rows += 1
                self._add(builder, element, rows, place)
                place += element.size + 1
        yield builder.take(rows)

    def _add(self, builder: BatchBuilder, element: Line, row: int, place: int) -> None:
        if element.data is None:
            builder.add_bad(over_limit("the element", element.size, self._max_item_bytes), row, place=place)
            return
        try:
            builder.add(parse_element(element.data), row, len(element.data), place)
        except BadLine as bad:
            builder.add_bad(str(bad), row, len(element.data), place)


def parse_element(data: bytes) -> Row:
    try:
        return parse_json(data)
    except BadLine as bad:
        raise BadLine(str(bad).replace("the line", "the element")) from None


def iter_elements(read: ReadRange, start: int, stop: int, limit_bytes: int) -> Iterator[Line]:
    """The elements in [start, stop), which ends after a comma or at the bracket; one over the limit has no data."""
    scanner, tail = ElementScanner(), Tail(limit_bytes)
    for at in range(start, stop, BLOCK_BYTES):
        block = read(at, min(at + BLOCK_BYTES, stop))
        begin = 0
        for comma in scanner.scan(block).commas:
            tail.grow(block[begin:comma])
            yield tail.take()
            begin = comma + 1
        tail.grow(block[begin:])
    last = tail.take()
    if last.data is None or last.data.strip():
        yield last


@lru_cache(64)
def find_layout(file: SourceFile) -> Layout:
    """Scan the whole file once: checks that the array is complete, and finds where it may be cut."""
    if not file.size_bytes:
        return Layout((), 0, 0)
    with open_ranges(file) as read:
        first, in_chunk = _find_open(file, read)
        spacing = max(1, file.content_bytes // _MOST_CUTS)
        scanner, starts, commas, end = ElementScanner(), [first], 0, first
        more = False
        for at, block in _blocks(file, read, first):
            found = scanner.scan(block)
            commas += len(found.commas)
            for comma in found.commas:
                if at + comma + 1 - starts[-1] >= spacing:
                    starts.append(at + comma + 1)
            last = found.commas[-1] + 1 if found.commas else 0
            more = bool(block[last : found.close].strip()) or (more and not last)
            if found.close is not None:
                rows, close = commas + more, at + found.close
                _check_end(file, read, close + 1, rows if in_chunk else None)
                return Layout(tuple(starts), close, rows)
            end = at + len(block)
    raise SourceError(
        f"{file_name(file.place)} is truncated: it ends at byte {end:,} inside the array, "
        f"after {commas:,} complete elements.",
        hint=f"Fetch or write {file.place} again.",
    )


def _blocks(file: SourceFile, read: ReadRange, start: int) -> Iterator[tuple[int, bytes]]:
    while start < file.end and (block := read(start, min(start + BLOCK_BYTES, file.end))):
        yield start, block
        start += len(block)


def _find_open(file: SourceFile, read: ReadRange) -> tuple[int, bool]:
    """The offset after the opening bracket, and whether the array is in a chunk that a split wrote."""
    head = read(0, min(WINDOW_BYTES, file.end))
    data = head.removeprefix(BOM).lstrip()
    begin = len(head) - len(data)
    if chunk := HEAD.match(data):
        return begin + chunk.end(), True
    if not data.startswith(b"["):
        raise SourceError(
            f"{file_name(file.place)} is not a JSON array: it starts with {data[:1].decode('latin1')!r}.",
            hint="For one object per line, use --format jsonl.",
        )
    return begin + 1, False


def _check_end(file: SourceFile, read: ReadRange, start: int, chunk_rows: int | None) -> None:
    """Check that nothing follows the array; in a chunk, that its item count does."""
    if chunk_rows is not None:
        end = read(start, min(start + WINDOW_BYTES, file.end))
        if (tail := TAIL.fullmatch(end)) is None or int(tail[1]) != chunk_rows:
            raise SourceError(
                f"{file_name(file.place)} has {chunk_rows:,} items, but its end names another number.",
                hint="Split the dataset again with --fresh.",
            )
        return
    for _, block in _blocks(file, read, start):
        if block.strip():
            raise SourceError(
                f"{file_name(file.place)}: the array ends at byte {start:,}, but more data follows.",
                hint="A file must be one array. For one object per line, use --format jsonl.",
            )


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    return find_layout(file).rows


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return JsonArraySource(stat, fields, max_item_bytes)


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns in a sample of the elements."""
    return describe_rows(*_sample_files(stat.files), fields)


def sample(stat: SourceStat) -> list[Row]:
    return _sample_files(stat.files)[1]


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[bytes, int]]:
    """Yield elements unparsed, on one line each: a raw newline in JSON can only be whitespace between tokens."""
    layout = find_layout(file)
    if not layout.rows:
        return
    position = layout.starts[0]
    with open_ranges(file) as read:
        for i, element in enumerate(iter_elements(read, position, layout.close, MAX_ITEM_BYTES)):
            data = element.data
            reason = over_limit("it", element.size, MAX_ITEM_BYTES) if data is None else "it is empty"
            if data is None or not data.strip():
                raise SourceError(
                    f"{file_name(file.place)}: element {i + 1:,}: {reason}.", hint="Fix it, or remove it."
                )
            position += element.size + 1
            yield data.strip().replace(b"\r", b" ").replace(b"\n", b" "), position


def _sample_files(files: Sequence[SourceFile]) -> tuple[SourceFile, list[Row]]:
    """The first file with elements, and elements at the start, the middle and the end of some files."""
    head = next((file for file in files if find_layout(file).rows), None)
    if head is None:
        raise empty_source(files)
    rows: list[Row] = []
    reason = ""
    for file in dict.fromkeys((head, files[len(files) // 2], files[-1])):
        for element in _sample(file):
            try:
                rows.append(parse_element(element))
            except BadLine as bad:
                reason = reason or str(bad)
    if rows:
        return head, rows
    raise SourceError(
        f"{file_name(head.place)} does not look like an array of JSON objects: {reason}.",
        hint="Each element must be one JSON object. Name another format with --format.",
    )


def _sample(file: SourceFile) -> Iterator[bytes]:
    layout = find_layout(file)
    if not layout.rows:
        return
    bounds = [*layout.starts, layout.close]
    places = [0, len(bounds) - 1] if file.streamed else sorted({(len(bounds) - 1) * i // 4 for i in range(5)})
    with open_ranges(file) as read:
        for first, last in itertools.pairwise(places):
            stop = min(bounds[last], bounds[first] + _SAMPLE_BYTES)
            elements = iter_elements(read, bounds[first], stop, _SAMPLE_BYTES)
            yield from (e.data for e in itertools.islice(elements, _SAMPLE_ROWS) if e.data is not None)
