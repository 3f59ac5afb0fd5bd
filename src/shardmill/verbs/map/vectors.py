"""All vectors of a source, batch by batch in source order, and a seeded sample of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import SourceError
from shardmill.core.random import draw_fine, make_key
from shardmill.plan import Shard, SourceStat
from shardmill.sources import Fields, open_source
from shardmill.verbs.map.layout.whole import Whole, as_matrix, to_whole

_SHARD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """Consecutive vectors as whole numbers: the row of the first, and which of them have a direction."""

    first: int
    whole: Whole
    usable: NDArray[np.bool_]
    share: float
    """How much of the source was read, from 0 to 1."""


def read_vectors(
    stat: SourceStat, fields: Fields, vector: str, shards: Sequence[Shard] | None = None
) -> Iterator[VectorBatch]:
    """Read the vectors of a source, or of the shards that it was cut into before."""
    source = open_source(stat, fields)
    shards = source.shards(_SHARD_BYTES) if shards is None else shards
    total = max(1, sum(shard.weight_bytes for shard in shards))
    row, read, dims = 0, 0.0, None
    for shard in shards:
        for batch in source.read(shard):
            matrix = as_matrix(batch.kept.column(vector), dims)
            if dims is None and matrix.shape[1]:
                dims = int(matrix.shape[1])
            elif not matrix.shape[1] and dims:
                matrix = np.full((len(matrix), dims), np.nan, np.float32)
            whole, usable = to_whole(matrix)
            read += batch.size_bytes
            yield VectorBatch(row, whole, usable, min(1.0, read / total))
            row += len(batch)


@dataclass(frozen=True, slots=True)
class VectorSample:
    """Some rows of a source and their vectors, and how many rows there are, with and without a vector."""

    rows: NDArray[np.int64]
    whole: Whole
    seen: int
    usable: int


def draw_sample(
    batches: Iterator[VectorBatch], size: int, seed: int, on_progress: Callable[[float, str], None]
) -> VectorSample:
    """Draw rows at random, each by its own number: those with the lowest draws."""
    key = make_key(seed, "map sample")
    rows, draws = np.zeros(0, np.int64), np.zeros(0)
    held: list[Whole] = []
    seen = usable = 0
    limit = np.inf
    for batch in batches:
        seen += len(batch.whole)
        usable += int(batch.usable.sum())
        if not batch.whole.shape[1]:
            continue
        numbers = batch.first + np.flatnonzero(batch.usable)
        drawn = draw_fine(numbers.astype(np.uint64), key)[0] if len(numbers) else np.zeros(0)
        low = drawn < limit
        rows, draws = np.concatenate([rows, numbers[low]]), np.concatenate([draws, drawn[low]])
        held.append(batch.whole[batch.usable][low])
        if len(rows) > 2 * size:
            rows, draws, held = _lowest(rows, draws, held, size)
            limit = float(draws.max())
        on_progress(batch.share, f"{seen:,} vectors read")
    if not usable:
        raise SourceError(
            f"None of the {seen:,} rows has a vector.", hint="Name the column with the vectors: --vector COLUMN"
        )
    rows, draws, held = _lowest(rows, draws, held, size)
    return VectorSample(rows, held[0], seen, usable)


def _lowest(
    rows: NDArray[np.int64], draws: NDArray[np.float64], held: list[Whole], size: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], list[Whole]]:
    """The rows with the lowest draws, in source order."""
    chosen = np.sort(np.lexsort((rows, draws))[:size])
    return rows[chosen], draws[chosen], [np.concatenate(held)[chosen]]
