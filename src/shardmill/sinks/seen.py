"""Items that tell when they changed: those that an earlier edition has as they are need not be read again.

Design: docs/design/telling-sources.md
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.errors import Cure, WorkerFailed
from shardmill.core.hashing import Hashes
from shardmill.ledger import Commit
from shardmill.plan import Plan
from shardmill.sinks.items_index import EarlierItems
from shardmill.sinks.lineage import CONTENT, MADE_FROM, SEEN, Lineages
from shardmill.store import Store

_HELD_ITEMS = 4 << 20

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recalled:
    """Items of a block that were left out when it was read: of each its shard and its place there, and its lineage."""

    left_out: NDArray[np.bool_]
    shards: Rows
    places: Rows
    made_from: pa.Array
    carried: Hashes
    contents: Hashes

    def fill(self, made_from: pa.Array, carried: Hashes, contents: Hashes) -> tuple[pa.Array, Hashes, Hashes]:
        """The digests of all items of the block, from those of the items that were read."""
        carried, contents = carried.copy(), contents.copy()
        carried[self.left_out], contents[self.left_out] = self.carried, self.contents
        mine = self.made_from.cast(made_from.type)
        return pc.replace_with_mask(made_from, pa.array(self.left_out), mine), carried, contents

    def among(self, is_reused: NDArray[np.bool_], shards: Rows, places: Rows) -> tuple[NDArray[np.bool_], Rows, Rows]:
        """The items that are taken over, with these: of each its shard and its place there."""
        every = np.zeros((2, len(is_reused)), np.int64)
        every[:, is_reused] = shards, places
        every[:, self.left_out] = self.shards, self.places
        is_reused = is_reused | self.left_out
        shards, places = every[:, is_reused]
        return is_reused, shards, places


class SeenItems:
    """The items of the edition `base` by what they tell of their change. Rows that changed before `newest` are older.

    One thread may ask `knows` while another asks `recall`.
    """

    def __init__(self, store: Store, lineages: Lineages, commits: Sequence[Commit], newest: str, worker: str) -> None:
        self.newest, self._lineages = newest, lineages
        self._commits = {commit.shard: commit for commit in commits}
        self._known, self._items = (EarlierItems(store, lineages, commits, worker, SEEN) for _ in range(2))
        self._held: OrderedDict[int, pa.Table] = OrderedDict()

    def knows(self, every: Iterator[pa.Array]) -> bool:
        """Whether all items of a shard that tell this of their change are there, each once."""
        batches = []
        for seen in every:
            if not self._known.find(seen)[0].all():
                return False
            batches.append(seen)
        found = pa.chunked_array(batches, pa.binary(16))
        return len(found.unique()) == len(found)

    def recall(self, seen: pa.Array, left_out: NDArray[np.bool_]) -> Recalled:
        """The items of a block that were left out, by what is seen of all of them."""
        found, shards, places = self._items.find(seen.filter(pa.array(left_out)))
        if missing := int((~found).sum()):
            error = WorkerFailed(
                f"{missing:,} rows of the query changed while their shard was read.",
                hint="This shard was not committed, and is tried again.",
            )
            error.cure = Cure.HERE
            raise error
        pieces, order = [], np.zeros(len(shards), np.int64)
        done = 0
        for shard in np.unique(shards).tolist():
            mine = np.flatnonzero(shards == shard)
            pieces.append(self._lineage(shard).take(pa.array(places[mine])))
            order[mine] = np.arange(done, done := done + len(mine))
        if not pieces:
            none = np.zeros(0, np.uint64)
            return Recalled(left_out, shards, places, pa.array([], pa.binary(16)), none, none)
        table = pa.concat_tables(pieces).take(pa.array(order)).combine_chunks()
        carried, contents = (table.column(name).to_numpy() for name in ("carried", CONTENT))
        return Recalled(left_out, shards, places, table.column(MADE_FROM).combine_chunks(), carried, contents)

    def _lineage(self, shard: int) -> pa.Table:
        if shard not in self._held:
            lineage = self._lineages.read(self._commits[shard])
            assert lineage is not None, shard
            self._held[shard] = lineage.select([MADE_FROM, "carried", CONTENT]).combine_chunks()
            held = sum(map(len, self._held.values()))
            while len(self._held) > 1 and held > _HELD_ITEMS:
                held -= len(self._held.popitem(last=False)[1])
        self._held.move_to_end(shard)
        return self._held[shard]


def find_newest(before: Plan, new: Plan) -> str:
    """Up to when the edition of a plan knows the rows that tell when they changed; empty if it knows none.

    As JSON. Rows that changed at that time may have changed again at the same time.
    """
    column = new.work.changed_since
    return before.stat.files[0].newest if column and column == before.work.changed_since else ""
