"""Blocks of JSON lines: the only form in which items pass from a source to a chunk."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 2 << 20
Buffer = bytes | memoryview
_SLICE_BYTES = 256 << 10
_WORD_BYTES = 8
_NEWLINE = 10
_BLANKS = np.isin(np.arange(256), list(b" \t\r\n"))


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines, none of them blank, each with its newline; `ends` has the end of each line.

    The data may be a view of a larger block, so that cutting copies nothing.
    """

    data: Buffer
    ends: NDArray[np.int64]

    @classmethod
    def cut(cls, data: Buffer) -> tuple[LineBlock, bytes]:
        """Cut bytes into whole lines without the blank ones, and the rest after the last newline."""
        raw = np.frombuffer(data, np.uint8)
        ends = _find_ends(raw)
        stop = int(ends[-1]) if len(ends) else 0
        rest = bytes(data[stop:])
        block = cls(data[:stop], ends)
        if _BLANKS[raw.take(block.starts)].any():
            block = cls.of_lines([line for line in block.lines() if line.strip()])
        return block, rest

    @classmethod
    def of_lines(cls, lines: list[bytes]) -> LineBlock:
        """Build a block of lines that have no newline and are not blank."""
        data = b"\n".join([*lines, b""])
        return cls(data, np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)) + 1))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.concatenate(([0], self.ends[:-1])) if len(self.ends) else self.ends

    def lines(self) -> list[bytes]:
        return bytes(self.data).split(b"\n")[:-1]

    def part(self, start: int, stop: int) -> LineBlock:
        """The lines [start, stop)."""
        if start == 0 and stop == len(self):
            return self
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop > start else first
        return LineBlock(memoryview(self.data)[first:last], self.ends[start:stop] - first)


Blocks = Iterator[LineBlock]


def _find_ends(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The offsets after newlines.

    Slices fit into the CPU cache, and only words of eight bytes with a newline are searched byte by byte.
    """
    is_newline = np.zeros(_SLICE_BYTES, np.bool_)
    words = is_newline.reshape(-1, _WORD_BYTES)
    found = []
    for at in range(0, len(raw), _SLICE_BYTES):
        part = raw[at : at + _SLICE_BYTES]
        np.equal(part, _NEWLINE, out=is_newline[: len(part)])
        is_newline[len(part) :] = False
        hits = np.flatnonzero(is_newline.view(np.uint64) != 0)
        inside = np.flatnonzero(words.take(hits, axis=0))
        found.append(hits[inside // _WORD_BYTES] * _WORD_BYTES + inside % _WORD_BYTES + (at + 1))
    return np.concatenate(found) if found else np.empty(0, np.int64)


class Buffers:
    """Memory to read into. A buffer is reused once no view of it is left: new pages cost time."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size_bytes: int) -> memoryview:
        """A buffer of at least `size_bytes`; it is not reused while a view of it exists."""
        if size_bytes > self._size_bytes:
            return memoryview(bytearray(size_bytes))
        held = self._free.pop() if self._free else np.empty(self._size_bytes, np.uint8)
        lent = held[:]
        weakref.finalize(lent, self._free.append, held).atexit = False
        return memoryview(lent)  # type: ignore[arg-type]


def join(blocks: Sequence[LineBlock]) -> LineBlock:
    """Join several blocks into one."""
    if len(blocks) == 1:
        return blocks[0]
    begins = itertools.accumulate((len(b.data) for b in blocks), initial=0)
    ends = [b.ends + begin for b, begin in zip(blocks, begins, strict=False)]
    return LineBlock(b"".join(b.data for b in blocks), np.concatenate(ends))


def gather(lines: Iterable[bytes]) -> Iterator[LineBlock]:
    """Collect single lines into blocks."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line) + 1
        if size >= BLOCK_BYTES:
            yield LineBlock.of_lines(held)
            held, size = [], 0
    if held:
        yield LineBlock.of_lines(held)
