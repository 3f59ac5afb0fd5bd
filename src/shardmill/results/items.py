"""The exact part of the proof: the source is read again, and every item and row is compared with what was committed.

Design: docs/design/proof-and-trust.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.console import Bar
from shardmill.core.errors import CorruptState, ShardmillError
from shardmill.core.hashing import Hashes, add_sums, sum_hashes
from shardmill.ledger import Commit, Ledger
from shardmill.plan import Plan, Shard
from shardmill.results.bad import MOST_NAMED, BadRow
from shardmill.results.report import Check
from shardmill.results.windows import count_items, has_items, has_windows, item_numbers
from shardmill.sinks.digests import hash_contents, hash_items, hash_kept, place_rows
from shardmill.sinks.parquet import read_part
from shardmill.sources import ALL, Fields, ItemBatch, open_source, sort_groups
from shardmill.tasks import open_task
from shardmill.tasks.base import WINDOW, Task

CONTENTS, BINDINGS = "contents", "bindings"
BEFORE = "written before items had digests"

_MOST_OF_SHARD = 10


@dataclass(frozen=True, slots=True)
class ReadItems:
    """The items of a shard as the source has them now: their digest, and a hash of each one's kept columns.

    `taken` says which of them the run takes, None if all.
    """

    digest: str
    kept: Hashes
    taken: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a part: their digest, and of each its item and hashes of its kept columns and of all it has."""

    digest: str
    items: NDArray[np.int64]
    kept: Hashes
    contents: Hashes


@dataclass(frozen=True, slots=True)
class Difference:
    """A shard whose items or rows are not what they must be, and its first wrong rows where they can be told.

    It is not a `fault` if the rows of a database may have changed since.
    """

    shard: int
    what: str
    rows: tuple[BadRow, ...] = ()
    fault: bool = True


@dataclass(slots=True)
class ExactTotals:
    """What was compared so far, by shard. `without` is why the source is not read, `failed` why it cannot be."""

    items: int = 0
    taken: int = 0
    rows: int = 0
    undigested: int = 0
    unbound: int = 0
    other_items: list[Difference] = field(default_factory=list)
    other_rows: list[Difference] = field(default_factory=list)
    without: str = ""
    failed: str = ""


class ItemsCheck:
    """Compares every item with the source, and the rows of each part with their items and their commit.

    `without` says why the source is not read, if it is not.
    """

    def __init__(self, ledger: Ledger, plan: Plan, items: Iterator[ReadItems], *, without: str) -> None:
        self._ledger, self._plan, self._items = ledger, plan, items
        self._seen = ExactTotals(without=_reason_without(plan, without))
        self._varies = open_task(plan.work.task, plan.work.params).rows_vary

    def add(self, commit: Commit, rows: StoredRows | None) -> None:
        """Compare the next shard; `rows` are None if its part cannot be read, or has none."""
        seen = self._seen
        if rows is not None:
            _compare_rows(seen, commit, rows)
        if seen.without or seen.failed:
            return
        try:
            read = next(self._items)
        except (ShardmillError, FileNotFoundError) as error:
            seen.failed = str(error).partition("\n")[0]
            return
        _compare_items(seen, self._ledger, self._plan, commit, read, rows, varies=self._varies)

    def checks(self) -> list[Check]:
        found = [_describe_contents(self._plan, self._seen)]
        return found if self._plan.work.to is not None else [*found, _describe_bindings(self._plan, self._seen)]


class StoredHashes:
    """Hashes the rows of one part, batch by batch."""

    def __init__(self, plan: Plan, task: Task) -> None:
        self._plan = plan
        self._names = [name for name in task.output.names if name != WINDOW]
        self._items, self._kept = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
        self._contents = [np.zeros(0, np.uint64)]
        self._digests = [sum_hashes(np.zeros(0, np.uint64))]
        self._first, self._last, self._before = 0, -1, 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if has_items(self._plan, batch.schema):
            own = item_numbers(batch)
            numbers = np.arange(len(own)) - np.searchsorted(own, own) + np.where(own == self._last, self._before, 0)
            self._last, self._before = int(own[-1]), int(numbers[-1]) + 1
        elif has_windows(self._plan, batch.schema):
            own = count_items(batch.column(WINDOW), self._first)
            numbers = batch.column(WINDOW).to_numpy(zero_copy_only=False)
            self._first = int(own[-1]) + 1
        else:
            own = np.arange(self._first, self._first + batch.num_rows)
            numbers = np.zeros(batch.num_rows, np.int64)
            self._first += batch.num_rows
        self._items.append(own)
        self._kept.append(hash_kept(batch.select(list(self._plan.kept))))
        self._contents.append(hash_contents(batch.select(self._names), self._kept[-1]))
        self._digests.append(sum_hashes(place_rows(self._contents[-1], own, numbers)))

    def close(self) -> StoredRows:
        items, kept = np.concatenate(self._items), np.concatenate(self._kept)
        return StoredRows(add_sums(self._digests), items, kept, np.concatenate(self._contents))


def _reason_without(plan: Plan, without: str) -> str:
    if without:
        return f"not compared with the source: {without}"
    # The text of such an item is the place of a file.
    return "not compared with the source: all its rows are one item" if plan.work.group_by == ALL else ""


def hash_items_of(plan: Plan) -> Callable[[Shard], ReadItems]:
    """Opens the source, and reads the items of a shard."""
    source = open_source(plan.stat, Fields.of(plan.work), plan.work.max_item_bytes)
    return lambda shard: _hash_batches(plan, source.read(shard))


def hash_groups(plan: Plan, commits: Mapping[int, Commit], bar: Bar) -> Iterator[ReadItems]:
    """The groups of each shard, in order. Rows are grouped anew: what the run folder has of them is not believed."""
    work = plan.work
    bare = replace(plan.stat, files=tuple(replace(file, index="") for file in plan.stat.files))
    stat = sort_groups(bare, Fields.of(work), work.max_item_bytes, lambda share, what: bar.at(share, what))
    groups = open_source(stat, Fields.of(work), work.max_item_bytes)
    every = (batch for shard in groups.shards(sys.maxsize) for batch in groups.read(shard))
    left: ItemBatch | None = None
    for shard in plan.shards:
        mine, wanted = [], commits[shard.index].rows
        while wanted > 0 and (left := left if left is not None else next(every, None)) is not None:
            mine.append(next(left.cut(wanted)))
            wanted -= len(mine[-1])
            left = left.after(len(mine[-1])) if len(mine[-1]) < len(left) else None
        if shard is plan.shards[-1]:
            mine += [*([left] if left is not None else []), *every]
        yield _hash_batches(plan, iter(mine))


def _hash_batches(plan: Plan, batches: Iterator[ItemBatch]) -> ReadItems:
    kept, digests, first = [np.zeros(0, np.uint64)], [sum_hashes(np.zeros(0, np.uint64))], 0
    taken = [np.zeros(0, bool)]
    for batch in batches:
        if unread := plan.kept.keys() - {*batch.kept.schema.names}:
            raise CorruptState(f"plan.json is damaged: {min(unread)!r} is kept, and not read.")
        kept.append(hash_kept(batch.kept.select(list(plan.kept))))
        digests.append(sum_hashes(hash_items(batch.texts, kept[-1], first, batch.taken)))
        taken.append(np.ones(len(batch), bool) if batch.taken is None else batch.taken)
        first += len(batch)
    part = np.concatenate(taken) if plan.work.takes_part else None
    return ReadItems(add_sums(digests), np.concatenate(kept), part)


def _compare_rows(seen: ExactTotals, commit: Commit, rows: StoredRows) -> None:
    """The rows of a part with the digest that was made of them before they were sorted and written."""
    if not commit.rows_digest:
        seen.unbound += 1
        return
    seen.rows += len(rows.items)
    if rows.digest != commit.rows_digest:
        what = "rows are not as the task returned them, or have changed places"
        seen.other_rows.append(Difference(commit.shard, what))


def _compare_items(
    seen: ExactTotals,
    ledger: Ledger,
    plan: Plan,
    commit: Commit,
    read: ReadItems,
    rows: StoredRows | None,
    *,
    varies: bool,
) -> None:
    """The source with what the commit says was read, and with the ids and kept columns in the part."""
    seen.items += len(read.kept)
    seen.taken += len(read.kept) if read.taken is None else int(read.taken.sum())
    seen.undigested += not commit.items_digest
    same = not commit.items_digest or commit.items_digest == read.digest
    differs: list[str] = []
    named: tuple[BadRow, ...] = ()
    if len(read.kept) != commit.rows:
        differs.append(f"{commit.rows:,} items were read, the source has {len(read.kept):,}")
    if rows is not None:
        inside = (rows.items >= 0) & (rows.items < len(read.kept))
        wrong = ~inside
        wrong[inside] = rows.kept[inside] != read.kept[rows.items[inside]]
        if wrong.any():
            named = _name(ledger, plan, commit, np.flatnonzero(wrong)[:_MOST_OF_SHARD], rows)
            differs.append(f"{int(wrong.sum()):,} rows have other ids or kept columns than the source")
    if rows is not None and read.taken is not None and not differs:
        differs += _compare_taken(commit, read.taken, rows, varies)
    if rows is None and read.taken is not None and commit.dropped < (left := int((~read.taken).sum())):
        differs.append(f"{commit.dropped:,} items were dropped, and {left:,} are not taken")
    if not same and not differs:
        differs.append("the texts are not those that were read")
    if differs:
        changed = bool(plan.work.query) and (not same or not commit.items_digest)
        seen.other_items.append(Difference(commit.shard, "; ".join(differs), named, fault=not changed))


def _compare_taken(commit: Commit, taken: NDArray[np.bool_], rows: StoredRows, varies: bool) -> Iterator[str]:
    """The items that have rows with those that are taken; the task of a run whose rows vary may give one none."""
    there = np.zeros(len(taken), bool)
    there[rows.items] = True
    if count := int((there & ~taken).sum()):
        yield f"{count:,} items have rows and are not taken"
    if not varies and (count := int((taken & ~there).sum())):
        yield f"{count:,} items are taken and have no row"
    if varies and commit.dropped < len(taken) - int(taken.sum()):
        yield f"{commit.dropped:,} items were dropped, fewer than are not taken"


def _name(
    ledger: Ledger, plan: Plan, commit: Commit, places: NDArray[np.int64], rows: StoredRows
) -> tuple[BadRow, ...]:
    """The rows that the part has at these places."""
    found: list[BadRow] = [{"shard": commit.shard, "row": int(rows.items[place])} for place in places]
    names, first, ids = list(plan.work.id), 0, []
    for batch in read_part(ledger.store, commit, names) if names else ():
        own = places[(places >= first) & (places < first + batch.num_rows)] - first
        ids += batch.take(pa.array(own)).to_pylist()
        first += batch.num_rows
    return tuple({**row, "id": id} for row, id in zip(found, ids, strict=True)) if names else tuple(found)


def _describe_contents(plan: Plan, seen: ExactTotals) -> Check:
    if seen.without or seen.failed:
        return Check(CONTENTS, not seen.failed, seen.failed or seen.without)
    faults = [each for each in seen.other_items if each.fault]
    if not faults and plan.shards[-1].most and seen.taken != plan.work.limit and not plan.work.query:
        return Check(CONTENTS, False, f"{seen.taken:,} items are taken, and --limit is {plan.work.limit:,}")
    if faults:
        return Check(CONTENTS, False, _describe(faults), _rows_of(faults))
    what = "ids, texts and kept columns" if not seen.undigested else "ids and kept columns"
    said = f"{what} of {seen.taken:,} items are those of the source"
    if plan.work.takes_part:
        said += f", and the other {seen.items - seen.taken:,} are not taken"
    if seen.other_items:
        said = f"{_describe(seen.other_items)}: rows of the query have changed since"
    if seen.undigested:
        said += f"; texts not compared: {seen.undigested:,} of {len(plan.shards):,} shards {BEFORE}"
    return Check(CONTENTS, True, said, _rows_of(seen.other_items))


def _describe_bindings(plan: Plan, seen: ExactTotals) -> Check:
    if seen.other_rows:
        return Check(BINDINGS, False, _describe(seen.other_rows), _rows_of(seen.other_rows))
    said = f"{seen.rows:,} rows are as the task returned them, each with its item"
    if seen.unbound:
        said += f"; not known of {seen.unbound:,} of {len(plan.shards):,} shards: {BEFORE}"
    return Check(BINDINGS, True, said)


def _describe(found: Sequence[Difference]) -> str:
    first = found[0]
    more = f"; {len(found) - 1:,} more shards differ" if len(found) > 1 else ""
    ids = [", ".join(map(str, row["id"].values())) if "id" in row else f"item {row['row']}" for row in first.rows[:4]]
    named = f" ({', '.join(ids[:3])}{', …' if len(ids) > 3 else ''})" if ids else ""
    return f"shard {first.shard}: {first.what}{named}{more}"


def _rows_of(found: Sequence[Difference]) -> tuple[BadRow, ...]:
    """The first wrong rows; a shard of which none can be told stands for itself."""
    named = (row for each in found for row in each.rows or ({"shard": each.shard},))
    return tuple(islice(named, MOST_NAMED))
