"""Lines of JSON by the block: the one form in which items pass from a source to a chunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 2 << 20
_BLANKS = np.isin(np.arange(256), list(b" \t\r\n"))


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines, none of them blank, each with its newline; `ends` says where each one ends.

    The data may be a view of a larger block: lines are cut without being copied.
    """

    data: bytes | memoryview
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, data: bytes) -> Block:
        """A block of lines out of bytes that end with a newline; blank lines are left out."""
        raw = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(raw == 10) + 1
        starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
        if _BLANKS[raw[starts]].any():
            kept = [line for line in data.split(b"\n") if line.strip()]
            return cls.of_lines(kept)
        return cls(data, ends)

    @classmethod
    def of_lines(cls, lines: list[bytes]) -> Block:
        """A block of lines that have no newline and are not blank."""
        data = b"\n".join([*lines, b""])
        return cls(data, np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)) + 1))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.concatenate(([0], self.ends[:-1])) if len(self.ends) else self.ends

    def lines(self) -> list[bytes]:
        return bytes(self.data).split(b"\n")[:-1]

    def part(self, start: int, stop: int) -> Block:
        """The lines [start, stop)."""
        if start == 0 and stop == len(self):
            return self
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop > start else first
        return Block(memoryview(self.data)[first:last], self.ends[start:stop] - first)


def join(blocks: list[Block]) -> Block:
    """Several blocks as one."""
    if len(blocks) == 1:
        return blocks[0]
    begins = itertools.accumulate((len(b.data) for b in blocks), initial=0)
    ends = [b.ends + begin for b, begin in zip(blocks, begins, strict=False)]
    return Block(b"".join(b.data for b in blocks), np.concatenate(ends))


def gather(lines: Iterable[bytes]) -> Iterator[Block]:
    """Blocks of lines that come one by one."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line) + 1
        if size >= BLOCK_BYTES:
            yield Block.of_lines(held)
            held, size = [], 0
    if held:
        yield Block.of_lines(held)
