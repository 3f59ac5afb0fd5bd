"""Where a CSV file may be cut: after a newline that is certainly not inside a quoted field.

After a newline there are two hypotheses: a record starts here, or we are inside quotes. Both are tried on a window. A
hypothesis fails if a quote appears where none is allowed, or if its records do not have as many fields as the header.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from shardmill.sources.files import BLOCK_BYTES, WINDOW_BYTES
from shardmill.store import ReadRange

_SURE_RECORDS = 8
_KILLED_RECORDS = 3
_TRIES = 4


@dataclass(frozen=True, slots=True)
class _Grammar:
    field: re.Pattern[bytes]
    field_unfinished: re.Pattern[bytes]
    inside: re.Pattern[bytes]
    inside_unfinished: re.Pattern[bytes]


@cache
def _grammar(delimiter: str) -> _Grammar:
    mark = re.escape(delimiter).encode()
    rest, plain = rb'[^"]*+(?:""[^"]*+)*+', rb'[^"\r\n' + mark + rb"]*+"
    end = rb"(" + mark + rb"|\r?\n|\Z)"
    return _Grammar(
        field=re.compile(rb'(?:"' + rest + rb'"|' + plain + rb")" + end),
        field_unfinished=re.compile(rb'(?:"' + rest + rb'(?:"\r)?|' + plain + rb"\r)\Z"),
        inside=re.compile(rest + rb'"' + end),
        inside_unfinished=re.compile(rest + rb'(?:"\r)?\Z'),
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """A window parsed under one hypothesis: the first record start, the number of whole records, whether they fit."""

    first: int | None
    records: int
    fits: bool
    alive: bool

    @property
    def possible(self) -> bool:
        return self.alive and self.fits

    @property
    def consistent(self) -> bool:
        return self.possible and self.first is not None


def find_record_start(read: ReadRange, start: int, stop: int, size: int, width: int, delimiter: str) -> int | None:
    """The first certain record start near `start` and before `stop`, None if none is certain.

    `width` is the header's number of fields.
    """
    for step in range(_TRIES):
        at = start + step * 4 * WINDOW_BYTES
        if at >= stop:
            return None
        found = _try_at(read, at, size, width, delimiter)
        if found is not None:
            return found if found < stop else None
    return None


def _try_at(read: ReadRange, at: int, size: int, width: int, delimiter: str) -> int | None:
    window_bytes = WINDOW_BYTES
    while True:
        stop = min(at + window_bytes, size)
        window = read(at - 1, stop)
        last = stop == size or window_bytes >= BLOCK_BYTES
        newline = window.find(b"\n")
        if newline >= 0:
            readings = [
                _parse(window[newline + 1 :], inside, stop == size, width, delimiter) for inside in (False, True)
            ]
            found = _decide(readings, stop == size, last, width)
            if found is not None:
                return at + newline + found
            if not any(reading.possible for reading in readings):
                return None
        if last:
            return None
        window_bytes *= 4


def _decide(readings: list[_Reading], ends_file: bool, last: bool, width: int) -> int | None:
    for reading, other in (readings, readings[::-1]):
        if not reading.consistent or other.consistent:
            continue
        if not other.alive and (reading.records >= _KILLED_RECORDS or (ends_file and reading.records)):
            return reading.first
        enough = last or (width > 1 and reading.records >= _SURE_RECORDS)
        if enough and reading.records >= _KILLED_RECORDS:
            return reading.first
    return None


def _parse(window: bytes, inside: bool, ends_file: bool, width: int, delimiter: str) -> _Reading:
    grammar = _grammar(delimiter)
    first: int | None = None if inside else 0
    at, fields, records, fits, blank = 0, 0, 0, True, True
    pattern, unfinished = grammar.field, grammar.field_unfinished
    if inside:
        pattern, unfinished = grammar.inside, grammar.inside_unfinished
    while at < len(window):
        match = pattern.match(window, at)
        if match is None:
            return _Reading(first, records, fits, alive=not ends_file and bool(unfinished.match(window, at)))
        if match.end() == len(window) and not match.group(1) and not ends_file:
            break
        pattern, unfinished = grammar.field, grammar.field_unfinished
        fields += 1
        blank = fields == 1 and match.end() - at == len(match.group(1))
        at = match.end()
        if match.group(1) == delimiter.encode():
            continue
        if first is None:
            first = at
        elif not blank:
            records += 1
            fits = fits and fields == width
        fields = 0
    if first is not None and first >= len(window):
        first = None
    return _Reading(first, records, fits, alive=True)
