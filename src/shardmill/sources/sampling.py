"""Samples rows of a source without a schema, to find its fields and their types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from shardmill.core.errors import SourceError
from shardmill.core.template import TextTemplate, kind_of
from shardmill.sources.base import Fields, Row, SourceFile
from shardmill.sources.columns import chosen_types, column_names, infer_type
from shardmill.sources.content import open_ranges
from shardmill.sources.files import empty_source, file_name
from shardmill.sources.origin import no_field
from shardmill.sources.parsing import BOM, BadLine, parse_json
from shardmill.store import ReadRange

_HEAD_BYTES, _HEAD_ROWS = 1 << 20, 1000
_WINDOW_BYTES, _WINDOW_ROWS = 256 << 10, 250
_HEAD_LIMIT_BYTES = 32 << 20


def describe_lines(files: Sequence[SourceFile], fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns, from a sample of the rows; refuses fields that no sampled row has."""
    head, rows = sample_rows(files)
    return describe_rows(head, rows, fields)


def describe_rows(head: SourceFile, rows: Sequence[Row], fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns in these rows; refuses fields that none of them has."""
    template = TextTemplate.parse(fields.text)
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in (*template.names, *column_names(fields)):
        if name not in names:
            raise no_field(name, file_name(head.place), names)
    if template.single:
        _check_text(head, template.names[0], rows)
    chosen = chosen_types(fields)
    return {name: chosen.get(name) or infer_type(row.get(name) for row in rows) for name in column_names(fields)}


def sample_rows(files: Sequence[SourceFile]) -> tuple[SourceFile, list[Row]]:
    """The first file that is not blank, and rows from its head and from all over the source."""
    head, lines = _sample_head(files)
    rows = _parse(head, lines)
    for file, window in _sample_windows(files):
        rows += _parse(file, window, lenient=True)
    return head, rows


def describe_text(files: Sequence[SourceFile], fields: Fields) -> dict[str, str]:
    """Plain text has one field, `text`."""
    head, _ = _sample_head(files)
    template = TextTemplate.parse(fields.text)
    asked = (*(() if template.single else template.names), *column_names(fields))
    for name in asked:
        if name != "text":
            raise no_field(name, file_name(head.place), ["text"])
    return {name: chosen_types(fields).get(name, "string") for name in column_names(fields)}


def _check_text(file: SourceFile, name: str, rows: Sequence[Row]) -> None:
    values = [row[name] for row in rows if row.get(name) is not None]
    if not values or any(isinstance(value, str) for value in values):
        return
    example = json.dumps(values[0], ensure_ascii=False)
    example = example if len(example) <= 60 else example[:60] + "…"
    holding = [key for key in rows[0] if any(isinstance(row.get(key), str) for row in rows)]
    raise SourceError(
        f"{name!r} in {file_name(file.place)} holds {kind_of(values[0])}, not text, for example {example}.",
        hint=f"Fields that hold text: {', '.join(holding) or 'none'}.",
    )


def _parse(file: SourceFile, lines: Sequence[bytes], lenient: bool = False) -> list[Row]:
    rows: list[Row] = []
    reason = ""
    for line in lines:
        try:
            rows.append(parse_json(line))
        except BadLine as bad:
            reason = reason or str(bad)
    if not rows and not lenient:
        raise SourceError(
            f"{file_name(file.place)} does not look like JSON Lines: {reason}.",
            hint="Each line must be one JSON object. Name another format with --format.",
        )
    return rows


def _sample_head(files: Sequence[SourceFile]) -> tuple[SourceFile, list[bytes]]:
    """The first lines of the first file that is not blank."""
    for file in files:
        with open_ranges(file) as read:
            at = 0
            while at < file.end and (block := read(at, min(at + _HEAD_BYTES, file.end))):
                if block.removeprefix(BOM if at == 0 else b"").strip():
                    return file, _head_lines(read, at, file.end)
                at += len(block)
    raise empty_source(files)


def _head_lines(read: ReadRange, at: int, size: int) -> list[bytes]:
    width = _HEAD_BYTES
    while True:
        stop = min(at + width, size)
        block = read(at, stop)
        ended = at + len(block) < stop or stop == size
        lines = _whole_lines(block.removeprefix(BOM if at == 0 else b""), ended)[:_HEAD_ROWS]
        if lines or ended or width >= _HEAD_LIMIT_BYTES:
            return lines or [block[:_WINDOW_BYTES]]
        width *= 4


def _sample_windows(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, list[bytes]]]:
    """Lines at a quarter, the middle, three quarters and the end of the source; for a stream, those at its head."""
    total = sum(file.content_bytes for file in files)
    if total <= _HEAD_BYTES and len(files) == 1:
        return
    places = [total // 4, total // 2, 3 * total // 4, max(total - _WINDOW_BYTES, 0)]
    begins = 0
    for file in files:
        inside = [place - begins for place in places if begins <= place < begins + file.content_bytes]
        inside = [0] if inside and file.streamed else inside
        begins += file.content_bytes
        if not inside:
            continue
        with open_ranges(file) as read:
            for at in inside:
                stop = min(at + _WINDOW_BYTES, file.end)
                block = read(at, stop)
                whole = block if at == 0 else block.partition(b"\n")[2]
                yield file, _whole_lines(whole, stop == file.end)[:_WINDOW_ROWS]


def _whole_lines(block: bytes, ends_file: bool) -> list[bytes]:
    lines = block.split(b"\n")
    if not ends_file:
        lines.pop()
    return [line for line in lines if line.strip()]
