"""The rows of the edition before: of an item that is as it was, they are taken over instead of being made again.

They stay where they are, and the new part names them in its recipe. Few rows at a time, or rows with other kept
columns, are copied. Design: docs/design/editions.md
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.hashing import Hashes
from shardmill.ledger import Commit, Editions, Ledger
from shardmill.plan import ITEM, WINDOW
from shardmill.plan.salt import salt_of
from shardmill.sinks.items_index import EarlierItems
from shardmill.sinks.lineage import Lineages, Recover
from shardmill.sinks.parquet import restore_missing
from shardmill.sinks.seen import Recalled, SeenItems, find_newest
from shardmill.sinks.whole import FindUnchanged, WholeShard, WholeShards
from shardmill.store import Store
from shardmill.store.parts import open_own, open_part, readable
from shardmill.store.recipes import FIRST, PART, ROWS, SHIFT, PartName, Recipe, as_ranges, find_recipe

# What is held of parts that were read, so that neighbours need no second read.
_HELD_BYTES, _HELD_PARTS = 256 << 20, 16
_HELD_ITEMS = 4 << 20
# A range of fewer bytes, on average of a block, is dearer to follow than to copy.
_FEWEST_BYTES = 256
# Of the rows of a part from the first to the last that a block names, one in two is named at least: others are read in
# vain.
_MOST_SPREAD = 2
# Of more parts than that in a block, only the largest are named, and the rows of the others are copied.
_MOST_PARTS, _PARTS_LEFT = 8, 4

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reused:
    """Items of a block whose rows are taken over: which they are, and of each row, in order, its item and its number.

    `recipe` has them as ranges of earlier parts, or as own rows for those that are `copied`, whose content has to be
    hashed; `contents` has the hashes of the others. `numbered` says that rows carry the numbers of their items. Of
    items that were `left_out` when their block was read, copied rows have the id and kept columns that they had.
    """

    is_reused: NDArray[np.bool_]
    items: Rows
    numbers: Rows
    parts: tuple[PartName, ...]
    # Of each row its part, from 1, or 0 if it is copied; its place there; what its item's number there lacks.
    places: Rows
    is_copied: NDArray[np.bool_]
    contents: Hashes
    copied: pa.RecordBatch
    numbered: bool
    left_out: NDArray[np.bool_] | None = None

    def keep(self, kept: pa.RecordBatch) -> pa.RecordBatch:
        """The id and kept columns of the copied rows; `kept` are those of the block."""
        items = self.items[self.is_copied]
        today = kept.take(pa.array(items))
        if self.left_out is None or not len(items):
            return today
        both = pa.concat_batches([today, self.copied.select(kept.schema.names).cast(kept.schema)])
        rows = np.arange(len(items))
        return both.take(pa.array(np.where(self.left_out[items], rows + len(items), rows)))

    def column(self, field: pa.Field) -> pa.Array:
        """A column of the copied rows. Parts of items with any number of rows do not have the numbers of these."""
        if field.name in self.copied.schema.names:
            return self.copied.column(field.name)
        assert field.name == WINDOW, field
        return pa.array(self.numbers[self.is_copied], field.type)

    def arrange(self, own_items: Rows, first_item: int) -> tuple[Rows, Recipe | None]:
        """The order of own rows, which are of these items, by their items, and the recipe of all rows of the block."""
        order = np.argsort(own_items, kind="stable")
        if self.is_copied.all():
            return order, None
        there = ~self.is_copied
        parts, rows, shifts = self.places[there].T
        shifts = shifts + first_item * self.numbered
        own = np.zeros_like(order)
        every = np.concatenate([own_items[order], self.items[there]])
        mixed = np.argsort(every, kind="stable")
        columns = (
            np.concatenate([own, parts])[mixed],
            np.concatenate([np.arange(len(order)), rows])[mixed],
            np.concatenate([own, shifts])[mixed],
        )
        return order, Recipe(self.parts, as_ranges(*columns), ITEM if self.numbered else "").named()


class EarlierRows:
    """Looks items up in the index, and finds their rows in the parts of the edition before.

    `stored` is the schema of parts: ranges of parts with another one are copied.
    """

    def __init__(
        self,
        ledger: Ledger,
        output: pa.Schema,
        stored: pa.Schema,
        recover: Recover,
        unchanged: FindUnchanged,
        worker: str = "",
    ) -> None:
        editions = Editions(ledger.url)
        self._edition = editions.origin(editions.number_of(ledger.url)).base
        self._base = Ledger(editions.open(self._edition))
        self._output, self._stored = output, stored
        plan, new = self._base.plan(), ledger.plan()
        # Of items that are not read, copied rows need all columns.
        self._copied = output
        if new.work.changed_since:
            own = {*output.names, ITEM}
            self._copied = pa.schema([*(field for field in stored if field.name not in own), *output])
        # Of another model or other parameters, no item is the same.
        is_alike = salt_of(plan) == salt_of(new)
        self._commits = {c.shard: c for c in self._base.commits.read_complete(plan)} if is_alike else {}
        self._precisions = {commit.precision for commit in self._commits.values()}
        self._lineages = Lineages(ledger.store, self._base, recover)
        commits = list(self._commits.values())
        self._items = EarlierItems(ledger.store, self._lineages, commits, worker)
        newest = find_newest(plan, new)
        self.seen = SeenItems(ledger.store, self._lineages, commits, newest, worker) if commits and newest else None
        self._whole = WholeShards(self._base, self._edition, plan, new, self._commits, unchanged)
        self._held: OrderedDict[int, _EarlierShard] = OrderedDict()
        self._parts: OrderedDict[int, _EarlierPart] = OrderedDict()
        self._names: dict[PartName, int] = {}

    def numerics_with(self, own: Mapping[str, str]) -> Mapping[str, str]:
        """How rows of which some were taken over were computed: as `own` if all were, else it is not known."""
        return own if self._precisions <= {own.get("precision", "")} else {}

    def find_whole(self, shard: int) -> WholeShard | None:
        """A shard that need not be read, since its files are as they were; None if it has to be."""
        return self._whole.find(shard, self._stored)

    def find(self, made_from: pa.Array, carried: Hashes, recalled: Recalled | None = None) -> Reused | None:
        """The rows of those items that were made from the same; None if there are none.

        Items that carry what they carried, too, need no copy of their rows. Those that were left out have rows of their
        own, whatever others were made from.
        """
        is_reused, shards, places = self._items.find(made_from)
        if recalled is not None:
            is_reused, shards, places = recalled.among(is_reused, shards, places)
        if not len(shards):
            return None
        items, counts = np.flatnonzero(is_reused), np.zeros(len(shards), np.int64)
        for shard, mine in _by_value(shards):
            counts[mine] = self._shard(shard).counts[places[mine]]
        owners = np.repeat(np.arange(len(items)), counts)
        numbers = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        numbered = ITEM in self._stored.names
        rows, theirs = np.zeros((len(owners), 3), np.int64), np.zeros(len(owners), np.int64)
        contents, is_copied = np.zeros(len(owners), np.uint64), np.zeros(len(owners), bool)
        for shard, mine in _by_value(shards[owners]):
            earlier, own = self._shard(shard), owners[mine]
            theirs[mine] = earlier.firsts[places[own]] + numbers[mine]
            contents[mine] = earlier.contents[theirs[mine]]
            other = earlier.carried[places[own]] != carried[items[own]]
            is_copied[mine] = other | (not earlier.is_stored_as(self._stored))
            parts, physical, shifts = earlier.physical(theirs[mine])
            named = np.array([self._number(name) for name in earlier.names], np.int64)
            shifts = items[own] - places[own] + shifts if numbered else np.zeros_like(shifts)
            rows[mine] = np.stack([named[parts], physical, shifts], axis=1)
        row_bytes = np.array([name.row_bytes for name in self._names])
        is_copied |= _is_dear(rows, is_copied, row_bytes)
        used = np.unique(rows[~is_copied, 0])
        names = list(self._names)
        rows[~is_copied, 0] = np.searchsorted(used, rows[~is_copied, 0]) + 1
        return Reused(
            is_reused,
            items[owners],
            numbers,
            tuple(names[i] for i in used),
            rows,
            is_copied,
            contents,
            self._copy(shards[owners[is_copied]], theirs[is_copied]),
            numbered,
            None if recalled is None else recalled.left_out,
        )

    def _number(self, name: PartName) -> int:
        return self._names.setdefault(name, len(self._names))

    def _shard(self, shard: int) -> _EarlierShard:
        if shard not in self._held:
            commit = self._commits[shard]
            self._held[shard] = _EarlierShard(self._base.store, commit, self._lineages.read(commit), self._edition)
            held = sum(len(each.counts) for each in self._held.values())
            while len(self._held) > 1 and held > _HELD_ITEMS:
                held -= len(self._held.popitem(last=False)[1].counts)
        self._held.move_to_end(shard)
        return self._held[shard]

    def _copy(self, shards: Rows, places: Rows) -> pa.RecordBatch:
        """The rows at these places of the parts of these shards, in this order."""
        found, order = [], []
        for shard, mine in _by_value(shards):
            for rows, table in self._part(shard).read(places[mine]):
                found.append(table)
                order.append(mine[rows])
        if not found:
            return pa.RecordBatch.from_pylist([], schema=self._copied)
        back = np.empty(len(places), np.int64)
        back[np.concatenate(order)] = np.arange(len(places))
        table = pa.concat_tables(found).take(pa.array(back)).combine_chunks()
        return table.cast(self._copied).to_batches()[0]

    def _part(self, shard: int) -> _EarlierPart:
        if shard not in self._parts:
            self._parts[shard] = _EarlierPart(self._base.store, self._commits[shard], list(self._copied.names))
            held = sum(part.held_bytes for part in self._parts.values())
            while len(self._parts) > 1 and (len(self._parts) > _HELD_PARTS or held > _HELD_BYTES):
                _, oldest = self._parts.popitem(last=False)
                held -= oldest.held_bytes
                oldest.close()
        self._parts.move_to_end(shard)
        return self._parts[shard]

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
        self._parts.clear()


def _by_value(values: Rows) -> Iterator[tuple[int, Rows]]:
    """Each value, with the places that have it."""
    order = np.argsort(values, kind="stable")
    found, starts = np.unique(values[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True) if len(found) else ()


def _is_dear(rows: Rows, is_copied: NDArray[np.bool_], row_bytes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The rows, so far not copied, that are cheaper to copy than to follow: in many parts, in ranges of few bytes, or
    with more rows between them that nobody names. A row of the part `n` has `row_bytes[n]`."""
    left = np.flatnonzero(~is_copied)
    dear = np.zeros(len(rows), bool)
    parts, counts = np.unique(rows[left, 0], return_counts=True)
    few = set(parts[np.argsort(counts, kind="stable")[:-_PARTS_LEFT]].tolist()) if len(parts) > _MOST_PARTS else set()
    for part, mine in _by_value(rows[left, 0]):
        at, places = left[mine], rows[left[mine], 1]
        spread = int(places.max() - places.min()) + 1
        bytes_of_range = row_bytes[part] * len(at) / len(as_ranges(*rows[at].T))
        dear[at] = part in few or spread > _MOST_SPREAD * len(at) or bytes_of_range < _FEWEST_BYTES
    return dear


class _EarlierShard:
    """What is known of the items of a shard without reading their rows, and where their rows are.

    Of each item `firsts` is its first row in the shard, `counts` how many it has.
    """

    def __init__(self, store: Store, commit: Commit, lineage: pa.Table | None, edition: int) -> None:
        place = f"{store.url}/{commit.part}"
        with readable(place), store.reader(commit.part) as file, open_own(file, place, commit.digest)[0] as own:
            self._recipe, self._schema = find_recipe(own), own.schema_arrow
            own_rows = own.metadata.num_rows
        assert lineage is not None, place
        rows = lineage.column("rows").combine_chunks()
        offsets = rows.offsets.to_numpy().astype(np.int64)
        self.firsts, self.counts = offsets[:-1] - offsets[0], np.diff(offsets)
        self.contents: Hashes = rows.flatten().to_numpy(zero_copy_only=False)
        self.carried: Hashes = lineage.column("carried").combine_chunks().to_numpy(zero_copy_only=False)
        own_name = PartName(edition, commit.part, commit.digest, commit.part_bytes / max(1, own_rows))
        self.names = [own_name, *(self._recipe.parts if self._recipe is not None else ())]

    def is_stored_as(self, schema: pa.Schema) -> bool:
        return bool(self._schema.equals(schema))

    def physical(self, rows: Rows) -> tuple[Rows, Rows, Rows]:
        """Of rows of the shard, the part in `names` that has each, its place, and what its item's number lacks."""
        if self._recipe is None:
            return np.zeros_like(rows), rows, np.zeros_like(rows)
        ranges = self._recipe.ranges
        stops = np.cumsum(ranges[:, ROWS])
        at = np.searchsorted(stops, rows, "right")
        starts = stops[at] - ranges[at, ROWS]
        return ranges[at, PART], ranges[at, FIRST] + rows - starts, ranges[at, SHIFT]


class _EarlierPart:
    """A part that is open: its last row group stays in memory."""

    def __init__(self, store: Store, commit: Commit, names: list[str]) -> None:
        self._place, self._names = f"{store.url}/{commit.part}", names
        with readable(self._place):
            self._file = store.reader(commit.part)
            self._opened, self._marked = open_part(self._file, self._place, commit.digest)
        metadata = self._opened.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]).astype(np.int64)
        self._group, self._table = -1, pa.table({})

    @property
    def held_bytes(self) -> int:
        return int(self._table.nbytes)

    def read(self, places: Rows) -> Iterator[tuple[Rows, pa.Table]]:
        """Rows at these places, group by group: which of them, and the rows."""
        groups = np.searchsorted(self._starts, places, "right") - 1
        for group in np.unique(groups):
            mine = np.flatnonzero(groups == group)
            yield mine, self._read_group(int(group)).take(pa.array(places[mine] - self._starts[group]))

    def _read_group(self, group: int) -> pa.Table:
        if group != self._group:
            with readable(self._place):
                rows = self._opened.read_row_group(group, self._names, use_threads=False).select(self._names)
            batches = [restore_missing(batch, marked=self._marked) for batch in rows.combine_chunks().to_batches()]
            self._group, self._table = group, pa.Table.from_batches(batches, rows.schema)
        return self._table

    def close(self) -> None:
        self._opened.close()
        self._file.close()
