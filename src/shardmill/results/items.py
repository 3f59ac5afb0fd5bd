"""The exact part of the proof: the source is read again, and every item and row is compared with what was committed.

Design: docs/design/proof-and-trust.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.console import Bar, duration, say
from shardmill.core.errors import ShardmillError
from shardmill.core.hashing import Hashes, add_sums, sum_hashes
from shardmill.ledger import Commit, Ledger
from shardmill.plan import Plan
from shardmill.results.pool import in_order
from shardmill.results.report import Check, Difference
from shardmill.results.windows import count_items, has_items, has_windows, item_numbers
from shardmill.sinks.digests import hash_items, hash_kept, hash_made
from shardmill.sinks.parquet import read_part
from shardmill.sources import ALL, Fields, ItemBatch, open_source, sort_groups
from shardmill.tasks import open_task
from shardmill.tasks.base import WINDOW

CONTENTS, BINDINGS = "contents", "bindings"
BEFORE = "written before items had digests"

_MOST_IDS, _MOST_DIFFERENCES = 10, 1000
# To read, hash and compare an item takes about this long besides what reading took the workers.
_S_PER_ITEM = 4e-6
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, pa.ArrowException, ShardmillError)


@dataclass(frozen=True, slots=True)
class ReadItems:
    """The items of a shard as the source has them now: their digest, and a hash of each one's kept columns."""

    digest: str
    kept: Hashes


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a part: their digest, and of each its item and a hash of its kept columns."""

    digest: str
    items: NDArray[np.int64]
    kept: Hashes


@dataclass(slots=True)
class ExactTotals:
    """What was compared so far, by shard."""

    items: int = 0
    rows: int = 0
    undigested: int = 0
    unbound: int = 0
    other_items: list[Difference] = field(default_factory=list)
    other_rows: list[Difference] = field(default_factory=list)


def announce(plan: Plan, commits: Mapping[int, Commit]) -> None:
    """Say what reading the source again will take, by what it took the workers."""
    read_s = sum(commit.timings.get("read_s", 0.0) for commit in commits.values())
    items = sum(commit.rows for commit in commits.values())
    size = f"{plan.stat.size_bytes:,} bytes, " if plan.stat.size_bytes else ""
    took = duration(read_s + items * _S_PER_ITEM)
    say(f"The whole source is read again: {size}{items:,} items, about {took}; --no-source leaves this out.")


def check_items(
    ledger: Ledger, plan: Plan, commits: Mapping[int, Commit], sound: Sequence[Commit], bar: Bar, *, source: bool
) -> tuple[list[Check], list[Difference]]:
    """Compare every item with the `source`, and the rows of all `sound` parts with their items and their commits."""
    seen, parts = ExactTotals(), {commit.shard for commit in sound}
    task = open_task(plan.work.task, plan.work.params)
    names = [name for name in task.output.names if name != WINDOW]
    asked = (commits[shard.index] for shard in plan.shards)
    stored = in_order(lambda c: _read_rows(ledger, plan, names, c) if c.shard in parts else None, asked)
    total = sum(commit.rows for commit in commits.values())
    without = _reason_without(plan, source)
    failed = ""
    there = iter(()) if without else _read_source(plan, commits, bar)
    for shard, rows in zip(plan.shards, stored, strict=True):
        commit = commits[shard.index]
        if rows is not None:
            _compare_rows(seen, commit, rows)
        if not without and not failed:
            try:
                read = next(there)
            except (ShardmillError, FileNotFoundError) as error:
                failed = str(error).partition("\n")[0]
                continue
            _compare_items(seen, ledger, plan, commit, read, rows)
            bar.count(seen.items, total, "items of the source")
    checks = [_describe_contents(plan, seen, without, failed)]
    if plan.work.to is None:
        checks.append(_describe_bindings(plan, seen))
    return checks, [*seen.other_items, *seen.other_rows][:_MOST_DIFFERENCES]


def _reason_without(plan: Plan, source: bool) -> str:
    if not source:
        return "not compared with the source: --no-source"
    # The text of such an item is the place of a file.
    return "not compared with the source: all its rows are one item" if plan.work.group_by == ALL else ""


def _read_source(plan: Plan, commits: Mapping[int, Commit], bar: Bar) -> Iterator[ReadItems]:
    """The items of each shard, in order. Rows are grouped anew: what the run folder has of them is not believed."""
    work = plan.work
    if not work.group_by:
        source = open_source(plan.stat, Fields.of(work), work.max_item_bytes)
        for shard in plan.shards:
            yield _hash_batches(plan, source.read(shard))
        return
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
    for batch in batches:
        kept.append(hash_kept(batch.kept.select(list(plan.kept))))
        digests.append(sum_hashes(hash_items(batch.texts, kept[-1], first)))
        first += len(batch)
    return ReadItems(add_sums(digests), np.concatenate(kept))


def _read_rows(ledger: Ledger, plan: Plan, names: list[str], commit: Commit) -> StoredRows | None:
    """The rows of a part; None if they cannot be read, which another check says."""
    items, kept, digests = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)], [sum_hashes(np.zeros(0, np.uint64))]
    first, last, before = 0, -1, 0
    try:
        for batch in read_part(ledger.store, commit.part):
            if not batch.num_rows:
                continue
            if has_items(plan, batch.schema):
                own = item_numbers(batch)
                numbers = np.arange(len(own)) - np.searchsorted(own, own) + np.where(own == last, before, 0)
                last, before = int(own[-1]), int(numbers[-1]) + 1
            elif has_windows(plan, batch.schema):
                own = count_items(batch.column(WINDOW), first)
                numbers = batch.column(WINDOW).to_numpy(zero_copy_only=False)
                first = int(own[-1]) + 1
            else:
                own, numbers = np.arange(first, first + batch.num_rows), np.zeros(batch.num_rows, np.int64)
                first += batch.num_rows
            items.append(own)
            kept.append(hash_kept(batch.select(list(plan.kept))))
            digests.append(sum_hashes(hash_made(batch.select(names), kept[-1], own, numbers)))
    except _UNREADABLE:
        return None
    return StoredRows(add_sums(digests), np.concatenate(items), np.concatenate(kept))


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
    seen: ExactTotals, ledger: Ledger, plan: Plan, commit: Commit, read: ReadItems, rows: StoredRows | None
) -> None:
    """The source with what the commit says was read, and with the ids and kept columns in the part."""
    seen.items += len(read.kept)
    seen.undigested += not commit.items_digest
    same = not commit.items_digest or commit.items_digest == read.digest
    differs: list[str] = []
    ids: tuple[str, ...] = ()
    if len(read.kept) != commit.rows:
        differs.append(f"{commit.rows:,} items were read, the source has {len(read.kept):,}")
    if rows is not None:
        inside = (rows.items >= 0) & (rows.items < len(read.kept))
        wrong = ~inside
        wrong[inside] = rows.kept[inside] != read.kept[rows.items[inside]]
        if wrong.any():
            ids = _name(ledger, plan, commit, np.flatnonzero(wrong)[:_MOST_IDS], rows)
            differs.append(f"{int(wrong.sum()):,} rows have other ids or kept columns than the source")
    if not same and not differs:
        differs.append("the texts are not those that were read")
    if differs:
        changed = bool(plan.work.query) and (not same or not commit.items_digest)
        seen.other_items.append(Difference(commit.shard, "; ".join(differs), ids, fault=not changed))


def _name(ledger: Ledger, plan: Plan, commit: Commit, places: NDArray[np.int64], rows: StoredRows) -> tuple[str, ...]:
    """The ids that the part has at these places; without ids, the numbers of the items."""
    names = list(plan.work.id)
    if not names:
        return tuple(f"item {rows.items[place]}" for place in places)
    found, first = [], 0
    for batch in read_part(ledger.store, commit.part, names):
        own = places[(places >= first) & (places < first + batch.num_rows)] - first
        values = batch.take(pa.array(own)).to_pylist()
        found += [", ".join(str(value[name]) for name in names) for value in values]
        first += batch.num_rows
    return tuple(found)


def _describe_contents(plan: Plan, seen: ExactTotals, without: str, failed: str) -> Check:
    if without or failed:
        return Check(CONTENTS, not failed, failed or without)
    faults = [each for each in seen.other_items if each.fault]
    if faults:
        return Check(CONTENTS, False, _describe(faults))
    what = "ids, texts and kept columns" if not seen.undigested else "ids and kept columns"
    said = f"{what} of {seen.items:,} items are those of the source"
    if seen.other_items:
        said = f"{_describe(seen.other_items)}: rows of the query have changed since"
    if seen.undigested:
        said += f"; texts not compared: {seen.undigested:,} of {len(plan.shards):,} shards {BEFORE}"
    return Check(CONTENTS, True, said)


def _describe_bindings(plan: Plan, seen: ExactTotals) -> Check:
    if seen.other_rows:
        return Check(BINDINGS, False, _describe(seen.other_rows))
    said = f"{seen.rows:,} rows are as the task returned them, each with its item"
    if seen.unbound:
        said += f"; not known of {seen.unbound:,} of {len(plan.shards):,} shards: {BEFORE}"
    return Check(BINDINGS, True, said)


def _describe(found: Sequence[Difference]) -> str:
    first = found[0]
    more = f"; {len(found) - 1:,} more shards differ" if len(found) > 1 else ""
    named = f" ({', '.join(first.ids[:3])}{', …' if len(first.ids) > 3 else ''})" if first.ids else ""
    return f"shard {first.shard}: {first.what}{named}{more}"
