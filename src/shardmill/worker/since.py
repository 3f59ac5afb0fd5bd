"""A query whose rows tell when they changed, read as far as an earlier edition does not know them.

Design: docs/design/telling-sources.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.plan import Plan, Shard
from shardmill.sinks.digests import hash_items_anywhere, hash_kept
from shardmill.sinks.lineage import CONTENT, SEEN
from shardmill.sinks.seen import SeenItems
from shardmill.sources import Fields, ItemBatch, Source
from shardmill.sources.sql import open_source as open_query


class ChangedSource(Source):
    """The rows of a query; those that the edition before has as they are come without text and columns.

    A shard is read whole if that edition lacks a row that should be there: one that was committed late, has its id
    twice, or failed.
    """

    def __init__(self, plan: Plan, items: SeenItems) -> None:
        self._items = items
        self._query = open_query(plan.stat, Fields.of(plan.work), plan.work.max_item_bytes)

    def shards(self, target_bytes: int) -> list[Shard]:
        return self._query.shards(target_bytes)

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        if self._items.knows(self._query.see(shard, self._items.newest)):
            yield from self._query.read_since(shard, self._items.newest)
        else:
            yield from self._query.read(shard)


def leave_out(source: Source, plan: Plan, items: SeenItems | None) -> Source:
    """The source of an edition without what `items` of the one before know, if they tell when they changed."""
    return source if items is None else ChangedSource(plan, items)


def is_as_seen(batches: Iterator[ItemBatch], lineage: pa.Table | None, keep: Iterable[str]) -> bool:
    """Whether the rows of a shard, read as far as they may have changed, are those of this lineage, one by one.

    False also if that cannot be told: of a row that failed, what it told of its change is not known.
    """
    if lineage is None or SEEN not in lineage.schema.names:
        return False
    first, names = 0, list(keep)
    for batch in batches:
        before = lineage.slice(first, len(batch))
        if len(before) < len(batch) or batch.seen is None or batch.left_out is None:
            return False
        seen, contents = before.column(SEEN).combine_chunks(), before.column(CONTENT).to_numpy()
        is_same = pc.equal(batch.seen, seen).fill_null(False).to_numpy(zero_copy_only=False)
        read = hash_items_anywhere(batch.texts, hash_kept(batch.kept.select(names))) == contents
        if not np.where(batch.left_out, is_same, read).all():
            return False
        first += len(batch)
    return first == len(lineage)
