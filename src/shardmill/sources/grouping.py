"""Sources of files. A reader cuts and reads one file; small files that follow one another share a shard."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.ranges import Range
from shardmill.plan import STREAM_END
from shardmill.sources.base import ItemBatch, Shard, Source, SourceStat
from shardmill.sources.batches import BATCH_BYTES, BATCH_ROWS
from shardmill.sources.files import check_read, check_unchanged
from shardmill.sources.origin import LINE, Origins, number_lines

# A piece of a file: where it starts and stops, and its share of the work in bytes.
Piece = tuple[Range, int]

# Opening a file takes time too, in an object store more than reading some kilobytes.
_MOST_FILES = 1000


class FileSource(Source):
    """A source of files. A subclass implements `cut` and `read_piece`, and cuts several files `at_once` if it reads
    them for that."""

    at_once = 1

    def __init__(self, stat: SourceStat) -> None:
        self._stat = stat
        self.origins = Origins(stat)

    @abstractmethod
    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        """Cut one file into pieces of about `target_bytes`, in order: none without rows, one if the target allows."""

    def count_between(self, shard: Shard, later: Shard) -> int:
        """Count the lines from the start of a piece to that of a later one; rows, if pieces are ranges of those."""
        return later.start - shard.start

    @abstractmethod
    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        """Read the items of a piece of one file, in order."""

    def shards(self, target_bytes: int) -> list[Shard]:
        shards = self._shards(target_bytes)
        return list(number_lines(shards, self.count_between)) if LINE in self._stat.origin else shards

    def _shards(self, target_bytes: int) -> list[Shard]:
        files = range(len(self._stat.files))
        if self.at_once == 1:
            return group_files((self.cut(i, target_bytes) for i in files), target_bytes)
        with ThreadPoolExecutor(self.at_once) as pool:
            return group_files(pool.map(lambda i: self.cut(i, target_bytes), files), target_bytes)

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        if shard.files == 1:
            yield from self._read_file(shard.file, shard)
            return
        yield from join_batches(
            (number, batch) for number in range(shard.files) for batch in self._read_file(shard.file + number)
        )

    def _read_file(self, index: int, piece: Shard | None = None) -> Iterator[ItemBatch]:
        """Read a piece of a file or, without one, the whole file."""
        file = self._stat.files[index]
        if not file.size_bytes:
            return
        check_unchanged(file)
        whole = [] if piece else self.cut(index, STREAM_END)
        for each in [piece] if piece else [Shard(0, index, *span, weight) for span, weight in whole]:
            yield from self.read_piece(each)
        check_read(file)


def group_files(cuts: Iterable[Sequence[Piece]], target_bytes: int) -> list[Shard]:
    """Number the pieces of all files. Files of one piece that follow one another share a shard up to the target.

    >>> [(s.file, s.files) for s in group_files([[((0, 4), 4)], [], [((0, 5), 5)], [((0, 9), 9)]], 10)]
    [(0, 3), (3, 1)]
    """
    groups: list[list[Shard]] = []
    weight, is_open = 0, False
    for file, pieces in enumerate(cuts):
        for span, share in pieces:
            piece, is_whole = Shard(0, file, *span, share), len(pieces) == 1
            fits = is_open and weight + share <= target_bytes and file - groups[-1][0].file < _MOST_FILES
            if is_whole and fits:
                groups[-1].append(piece)
                weight += share
            else:
                groups.append([piece])
                weight, is_open = share, is_whole
    return [_make_shard(i, group) for i, group in enumerate(groups)]


def _make_shard(index: int, group: Sequence[Shard]) -> Shard:
    first, last = group[0], group[-1]
    if first is last:
        return replace(first, index=index)
    weight = sum(piece.weight_bytes for piece in group)
    return Shard(index, first.file, 0, STREAM_END, weight, files=last.file + 1 - first.file)


def join_batches(found: Iterable[tuple[int, ItemBatch]]) -> Iterator[ItemBatch]:
    """Join the batches of small files to larger ones; each comes with the number of its file in the shard."""
    waiting: list[tuple[int, ItemBatch]] = []
    rows = size_bytes = 0
    for number, batch in found:
        if waiting and (rows + len(batch) > BATCH_ROWS or size_bytes + batch.size_bytes > BATCH_BYTES):
            yield _join(waiting)
            waiting, rows, size_bytes = [], 0, 0
        waiting.append((number, batch))
        rows, size_bytes = rows + len(batch), size_bytes + batch.size_bytes
    if waiting:
        yield _join(waiting)


def _join(found: Sequence[tuple[int, ItemBatch]]) -> ItemBatch:
    bad: dict[int, str] = {}
    unread: set[int] = set()
    rows = 0
    for _, batch in found:
        bad |= {rows + row: reason for row, reason in batch.bad.items()}
        unread |= {rows + row for row in batch.unread}
        rows += len(batch)
    places = [place for _, batch in found for place in batch.places]
    return ItemBatch(
        texts=pa.concat_arrays([batch.texts for _, batch in found]),
        kept=pa.concat_batches([batch.kept for _, batch in found]),
        lines=[line for _, batch in found for line in batch.lines],
        line_count=sum(batch.line_count for _, batch in found),
        bad=bad,
        size_bytes=sum(batch.size_bytes for _, batch in found),
        files=[number for number, batch in found for _ in range(len(batch))],
        places=places if len(places) == rows else (),
        unread=frozenset(unread),
        taken=None if all(batch.taken is None for _, batch in found) else np.concatenate([*map(_taken, found)]),
    )


def _taken(found: tuple[int, ItemBatch]) -> NDArray[np.bool_]:
    return np.ones(len(found[1]), bool) if found[1].taken is None else found[1].taken
