"""Cuts items into chunks. Pieces of a chunk are passed on as they arrive, so that memory never holds a whole chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardmill.core.ranges import split_evenly
from shardmill.verbs.split.blocks import BLOCK_BYTES, LineBlock, join
from shardmill.verbs.split.routing import Routed
from shardmill.verbs.split.spec import Cut


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive lines of one chunk; `index` is the number of items of the part before this piece."""

    part: int
    chunk: int
    blocks: tuple[LineBlock, ...]
    index: int
    chunk_index: int
    first: bool
    last: bool

    @property
    def stop(self) -> int:
        """The number of items of the part before the next piece."""
        return self.index + sum(map(len, self.blocks))

    def block(self) -> LineBlock:
        """All lines in one block; this copies them if they are in several blocks."""
        return join(self.blocks)


def cut_pieces(routed: Iterator[Routed], cut: Cut, counts: list[int]) -> Iterator[Piece]:
    """Put every line in a piece of its chunk; `counts` has the items of each part, for a cut by workers."""
    cutters = [_Cutter(part, cut, count) for part, count in enumerate(counts)]
    for part, block in routed:
        yield from cutters[part].add(block)
    for cutter in cutters:
        yield from cutter.end()


class _Cutter:
    """Cuts the chunks of one part. A piece waits until it is known whether it is the last of its chunk."""

    def __init__(self, part: int, cut: Cut, count: int) -> None:
        self._part, self._cut = part, cut
        self._sizes = [b - a for a, b in split_evenly(0, count, cut.workers)] if cut.workers and count else []
        self._chunk = self._index = self._chunk_index = 0
        self._chunk_items = self._chunk_bytes = 0
        self._held: list[LineBlock] = []
        self._held_bytes = 0
        self._first = True

    def add(self, block: LineBlock) -> Iterator[Piece]:
        while len(block):
            room = self._room(block)
            if room == 0:
                yield self._hand_on(last=True)
                continue
            taken, block = block.part(0, room), block.part(room, len(block))
            if self._held_bytes >= BLOCK_BYTES:
                yield self._hand_on(last=False)
            self._held.append(taken)
            self._held_bytes += len(taken.data)
            self._chunk_items += len(taken)
            self._chunk_bytes += len(taken.data)

    def _room(self, block: LineBlock) -> int:
        """The number of lines of the block that still fit into the chunk; an empty chunk takes any line."""
        if self._cut.bytes:
            fitting = int(np.searchsorted(block.ends, self._cut.bytes - self._chunk_bytes, side="right"))
            return fitting or (0 if self._chunk_items else 1)
        size = self._cut.items or self._sizes[min(self._chunk, len(self._sizes) - 1)]
        return min(len(block), size - self._chunk_items)

    def _hand_on(self, *, last: bool) -> Piece:
        held = tuple(self._held)
        piece = Piece(self._part, self._chunk, held, self._index, self._chunk_index, self._first, last)
        self._index = piece.stop
        self._held, self._held_bytes, self._first = [], 0, last
        if last:
            self._chunk, self._chunk_index = self._chunk + 1, self._index
            self._chunk_items = self._chunk_bytes = 0
        return piece

    def end(self) -> Iterator[Piece]:
        if self._held:
            yield self._hand_on(last=True)
