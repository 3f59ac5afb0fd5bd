"""The rows of an audit: vectors with their texts, from one source, or from two whose rows go together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import SourceError
from shardmill.core.template import NO_TEXT
from shardmill.plan import Shard, SourceStat
from shardmill.sources import Fields, discover, open_source
from shardmill.sources.ahead import ahead
from shardmill.store import is_url

_SHARD_BYTES = 64 << 20
_NPY_ROWS = 8192

# An Arrow array, which has no types, or a matrix.
Column: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows: their vectors, their texts, or both; `share` is how much was read before its end."""

    vectors: Column
    texts: pa.Array | None
    share: float = 1.0

    def __len__(self) -> int:
        column = self.texts if self.vectors is None else self.vectors
        return 0 if column is None else len(column)

    def cut(self, start: int, stop: int) -> RowBlock:
        """Some of its rows."""
        vectors = None if self.vectors is None else self.vectors[start:stop]
        return RowBlock(vectors, None if self.texts is None else self.texts[start:stop], self.share)

    def take(self, rows: NDArray[np.int64]) -> RowBlock:
        """Rows by their numbers in the block."""
        vectors = self.vectors
        if vectors is not None:
            vectors = vectors[rows] if isinstance(vectors, np.ndarray) else vectors.take(pa.array(rows))
        return RowBlock(vectors, None if self.texts is None else self.texts.take(pa.array(rows)), self.share)


class Rows(Protocol):
    """Where rows come from. `place` names it in messages."""

    place: str

    def read(self) -> Iterator[RowBlock]:
        """All rows, in order."""

    def pick(self, rows: NDArray[np.int64]) -> Iterator[RowBlock]:
        """Rows by their numbers, which are sorted; after `read` has come to its end."""


class SourceRows:
    """Rows of any source that shardmill reads. Only the shards that have the rows are read again."""

    def __init__(
        self, stat: SourceStat, fields: Fields, column: str = "", shards: Sequence[Shard] | None = None, place: str = ""
    ) -> None:
        self._source = open_source(stat, fields)
        self._column, self._has_text = column, fields.text != NO_TEXT
        self._shards = self._source.shards(_SHARD_BYTES) if shards is None else shards
        self._firsts: list[int] = []
        self.place = place

    @classmethod
    def of(cls, places: Sequence[str], fields: Fields, format: str | None, column: str = "") -> SourceRows:
        """The rows of files or of a query."""
        return cls(discover(places, fields, format), fields, column, place=", ".join(places))

    def read(self) -> Iterator[RowBlock]:
        total, done, row = max(1, sum(shard.weight_bytes for shard in self._shards)), 0.0, 0
        self._firsts = []
        for shard in self._shards:
            self._firsts.append(row)
            for batch in self._source.read(shard):
                done += batch.size_bytes
                row += len(batch)
                yield self._block(batch, min(1.0, done / total))

    def pick(self, rows: NDArray[np.int64]) -> Iterator[RowBlock]:
        shards = np.searchsorted(self._firsts, rows, side="right") - 1
        for number in np.unique(shards):
            wanted, row = rows[shards == number], self._firsts[number]
            for batch in self._source.read(self._shards[number]):
                own = wanted[(wanted >= row) & (wanted < row + len(batch))]
                if len(own):
                    yield self._block(batch, 1.0).take(own - row)
                row += len(batch)

    def _block(self, batch: Any, share: float) -> RowBlock:
        vectors = batch.kept.column(self._column) if self._column else None
        return RowBlock(vectors, batch.texts if self._has_text else None, share)


class NumpyRows:
    """The rows of a .npy file, which is not read into memory."""

    def __init__(self, path: str) -> None:
        self.place = path
        self._matrix = _open_npy(path)

    def read(self) -> Iterator[RowBlock]:
        for start in range(0, len(self._matrix), _NPY_ROWS):
            stop = min(len(self._matrix), start + _NPY_ROWS)
            yield RowBlock(np.asarray(self._matrix[start:stop]), None, stop / len(self._matrix))

    def pick(self, rows: NDArray[np.int64]) -> Iterator[RowBlock]:
        yield RowBlock(np.asarray(self._matrix[rows]), None)


class PairedRows:
    """Vectors and texts from two places, whose rows go together."""

    def __init__(self, vectors: Rows, texts: Rows) -> None:
        self._vectors, self._texts = vectors, texts
        self.place = vectors.place

    def read(self) -> Iterator[RowBlock]:
        vectors, texts = self._vectors.read(), ahead(self._texts.read)
        left: RowBlock | None = None
        right: RowBlock | None = None
        row = 0
        while True:
            left, right = left or _next(vectors), right or _next(texts)
            if left is None or right is None:
                break
            size = min(len(left), len(right))
            yield RowBlock(left.cut(0, size).vectors, right.cut(0, size).texts, left.share)
            left, right = left.cut(size, len(left)), right.cut(size, len(right))
            row += size
        if left is not None or right is not None:
            more = [row + sum(map(len, (block, *rest))) for block, rest in ((left, vectors), (right, texts)) if block]
            counts = (more[0], row) if left is not None else (row, more[0])
            raise SourceError(
                f"{self._vectors.place} has {counts[0]:,} vectors, and {self._texts.place} has {counts[1]:,} rows.",
                hint="Give the source that was embedded, whole and in its order.",
            )

    def pick(self, rows: NDArray[np.int64]) -> Iterator[RowBlock]:
        found = [block.vectors for block in self._vectors.pick(rows)]
        joined = np.concatenate(found) if isinstance(found[0], np.ndarray) else pa.concat_arrays(found)
        yield RowBlock(joined, pa.concat_arrays([block.texts for block in self._texts.pick(rows)]))


def _next(blocks: Iterator[RowBlock]) -> RowBlock | None:
    return next((block for block in blocks if len(block)), None)


def _open_npy(path: str) -> NDArray[Any]:
    if is_url(path):
        raise SourceError(f"{path} is not on this machine.", hint="Copy the .npy file here first.")
    try:
        matrix = np.load(Path(path).expanduser(), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(
            f"{path} cannot be read: {str(error).partition(chr(10))[0].rstrip('.')}.",
            hint="Give a .npy file that numpy.save wrote, with numbers.",
        ) from error
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        shape = getattr(matrix, "shape", "no array")
        raise SourceError(
            f"{path} has the shape {shape} and the type {getattr(matrix, 'dtype', '?')}.",
            hint="An audit takes a matrix of numbers, one row per item.",
        )
    return matrix
