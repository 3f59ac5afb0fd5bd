"""A part of a source: items that a condition and a draw leave, up to a limit. The others keep their numbers.

Workers and the proof read a source through this, so both leave out the same items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardmill.core.arrowtypes import arrow_type
from shardmill.core.errors import SourceError
from shardmill.core.hashing import Hashes, bind, hash_rows, mix
from shardmill.core.where.condition import Condition
from shardmill.core.where.evaluation import check_types, holds
from shardmill.core.where.parsing import parse_condition
from shardmill.sources.base import Fields, ItemBatch, Shard, Source, SourceStat

# Formats whose numbers are texts.
_SPELLED = ("csv", "tsv")

Mask = NDArray[np.bool_]


class PartSource(Source):
    """The items of a source, each with whether it is taken. What follows the last item of a limit is not read."""

    def __init__(self, whole: Source, stat: SourceStat, fields: Fields) -> None:
        self._whole, self._fields = whole, fields
        self._spelled = is_spelled(stat)
        self._condition: Condition | None = parse_condition(fields.where) if fields.where else None

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        return self._whole.notes

    def shards(self, target_bytes: int) -> list[Shard]:
        return self._whole.shards(target_bytes)

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        left = shard.most
        for batch in self._whole.read(shard):
            part = self._take(batch, shard.file)
            if not left:
                yield part
                continue
            rows = np.arange(len(part)) if part.taken is None else np.flatnonzero(part.taken)
            if len(rows) >= left:
                yield next(part.cut(int(rows[left - 1]) + 1))
                return
            left -= len(rows)
            yield part

    def _take(self, batch: ItemBatch, file: int) -> ItemBatch:
        if batch.taken is not None or (self._condition is None and self._fields.take is None):
            return batch
        taken = np.ones(len(batch), bool)
        if self._condition is not None:
            found = holds(self._condition, batch.kept, spelled=self._spelled)
            taken = found.fill_null(False).to_numpy(zero_copy_only=False).copy()
            taken[[*batch.unread]] = True
        if self._fields.take is not None:
            taken &= self._drawn(batch, file, self._fields.take)
        return replace(batch, taken=taken, bad={row: why for row, why in batch.bad.items() if taken[row]})

    def _drawn(self, batch: ItemBatch, file: int, share: float) -> Mask:
        """The rows whose hash is among the lowest: of the id, or of the place in the source if they have none."""
        hashes, missing = np.zeros(len(batch), np.uint64), np.ones(len(batch), bool)
        if self._fields.id:
            ids = batch.kept.select(list(self._fields.id))
            hashes = mix(hash_rows(ids))
            for column in ids.columns:
                missing &= column.is_null().to_numpy(zero_copy_only=False)
        if missing.any():
            hashes[missing] = _hash_places(batch, file)[missing]
        lowest = int(share * 2.0**64)
        return np.ones(len(batch), bool) if lowest >= 1 << 64 else hashes < np.uint64(lowest)


def _hash_places(batch: ItemBatch, file: int) -> Hashes:
    if len(batch.places) != len(batch):
        raise SourceError(
            "--take: these items have neither an id nor a place that can be told again.", hint="Name an id: --id FIELD"
        )
    files = np.array(batch.files, np.uint64) if len(batch.files) else np.zeros(len(batch), np.uint64)
    return bind(mix(files + np.uint64(file)), np.array(batch.places, np.uint64))


def is_spelled(stat: SourceStat) -> bool:
    """Whether a condition reads texts of the source that it compares with numbers as numbers."""
    return stat.format in _SPELLED


def check_condition(stat: SourceStat, fields: Fields) -> None:
    """Refuse a condition that compares what cannot be compared in this source."""
    import pyarrow as pa

    if fields.where:
        schema = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in stat.columns.items()])
        check_types(parse_condition(fields.where), schema, spelled=is_spelled(stat))


def cut_at(source: Source, shards: Sequence[Shard], limit: int) -> list[Shard]:
    """The shards with the first `limit` items that are taken, found by reading up to the last of them."""
    left = limit
    for number, shard in enumerate(shards):
        found = read_bytes = 0
        for batch in source.read(replace(shard, most=left)):
            found += len(batch) if batch.taken is None else int(batch.taken.sum())
            read_bytes += batch.size_bytes
        if found == left:
            return [*shards[:number], replace(shard, most=left, weight_bytes=max(1, read_bytes))]
        left -= found
    return list(shards)
