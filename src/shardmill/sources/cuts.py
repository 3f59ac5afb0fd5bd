"""Cuts files by arithmetic on their sizes, and splits a byte range into lines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from shardmill.core.ranges import Range, split_evenly
from shardmill.sources.base import SourceFile
from shardmill.sources.files import BLOCK_BYTES, WINDOW_BYTES
from shardmill.store import ReadRange

_CUTS_IN_A_GAP = 4


class Line(NamedTuple):
    """One line without its newline; a line over the limit has no data, only its size and number of quotes."""

    data: bytes | None
    size: int
    quotes: int = 0


def even_ranges(start: int, stop: int, target_bytes: int) -> list[Range]:
    """Cut [start, stop) into equal ranges of at most `target_bytes`; an empty range gives none."""
    return split_evenly(start, stop, -(-(stop - start) // max(target_bytes, 1))) if stop > start else []


def cut_evenly(file: SourceFile, start: int, target_bytes: int) -> list[Range]:
    """Cut the content of a file from `start` into equal ranges; a stream is one range."""
    return even_ranges(start, file.end, finest_cut(file, target_bytes))


def finest_cut(file: SourceFile, target_bytes: int) -> int:
    """The smallest useful range of a file, in bytes.

    To read a range, a worker decompresses from the seek point before it, so ranges much smaller than the distance
    between seek points waste work.
    """
    places = [*(unpacked for _, unpacked in file.entries), file.end]
    widest = max((b - a for a, b in itertools.pairwise(places)), default=0)
    return file.end if file.streamed else max(target_bytes, widest // _CUTS_IN_A_GAP)


def weigh(file: SourceFile, start: int, stop: int) -> int:
    return max(1, file.content_bytes) if file.streamed else stop - start


def find_line_start(read: ReadRange, start: int, stop: int) -> int | None:
    """The first offset in [start, stop) where a line starts, None if no line starts there."""
    at, width = start - 1, WINDOW_BYTES
    if start == 0:
        return 0 if stop > 0 else None
    while at < stop - 1:
        block = read(at, min(at + width, stop - 1))
        newline = block.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at, width = at + len(block), min(2 * width, BLOCK_BYTES)
    return None


def iter_lines(
    read: ReadRange, start: int, stop: int, size: int, limit_bytes: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[Line]:
    """Yield the lines that start in [start, stop); a line must start at `start`.

    The last one is read past `stop`, at most to `size`. A line over `limit_bytes` is never kept in memory.
    """
    tail = Tail(limit_bytes)
    at, width = start, WINDOW_BYTES
    while at < stop:
        block = read(at, min(at + block_bytes, stop))
        if not block:
            break
        at += len(block)
        first, *rest = block.split(b"\n")
        tail.grow(first)
        if not rest:
            continue
        yield tail.take()
        last = rest.pop()
        for data in rest:
            yield Line(data, len(data)) if len(data) <= limit_bytes else Line(None, len(data), data.count(b'"'))
        tail.grow(last)
    while tail.size and at < size:
        block = read(at, min(at + width, size))
        if not block:
            break
        at, width = at + len(block), min(2 * width, BLOCK_BYTES)
        newline = block.find(b"\n")
        tail.grow(block if newline < 0 else block[:newline])
        if newline >= 0:
            break
    if tail.size:
        yield tail.take()


def count_lines(read: ReadRange, size: int) -> int:
    """Count the lines up to `size`; the last one need not end with a newline."""
    lines, at, ends = 0, 0, b"\n"
    while at < size and (block := read(at, min(at + BLOCK_BYTES, size))):
        lines, at, ends = lines + block.count(b"\n"), at + len(block), block[-1:]
    return lines + (ends != b"\n")


def count_starts(read: ReadRange, start: int, stop: int) -> int:
    """Count the lines that start in [start, stop)."""
    lines, at = int(start == 0), max(0, start - 1)
    while at < stop - 1 and (block := read(at, min(at + BLOCK_BYTES, stop - 1))):
        lines, at = lines + block.count(b"\n"), at + len(block)
    return lines


class Tail:
    """The unfinished line, or the unfinished element of a JSON array."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: list[bytes] = []
        self._quotes = 0
        self.size = 0

    def grow(self, piece: bytes) -> None:
        self.size += len(piece)
        self._pieces.append(piece)
        if self.size > self._limit_bytes:
            self._quotes += sum(held.count(b'"') for held in self._pieces)
            self._pieces.clear()

    def take(self) -> Line:
        over = self.size > self._limit_bytes
        line = Line(None if over else b"".join(self._pieces), self.size, self._quotes)
        self._pieces, self._quotes, self.size = [], 0, 0
        return line
