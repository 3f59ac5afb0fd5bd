"""What one pass over the parts sees: each part is read once and checked alone, on all cores."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import ShardmillError
from shardmill.ledger import Commit, Ledger
from shardmill.plan import Plan
from shardmill.results.empty import Mask, find_empty, made_vectors
from shardmill.results.ids import hash_ids
from shardmill.results.items import StoredHashes, StoredRows
from shardmill.results.seen import SeenInParts
from shardmill.results.windows import ItemCheck, RowItems, WindowCheck, has_windows
from shardmill.sinks.parquet import read_batches, vectors
from shardmill.store import Store, locate
from shardmill.store.parts import open_own
from shardmill.store.recipes import Recipe, find_recipe, run_of
from shardmill.tasks.base import Task

# How far the length of a vector may be from one.
UNIT_SLACK = 5e-3
_READ_BYTES = 4 << 20
# A larger part is read twice, once for its digest and once for its rows, as it is not held in memory.
_HELD_PART_BYTES = 32 << 20

# Whether parts of earlier editions, by place and digest, are what was committed.
Compared = dict[tuple[str, str], bool]


class PartLook:
    """Looks at the rows of one part, batch by batch in order: at their vectors, results and ids."""

    def __init__(self, seen: SeenInParts, plan: Plan, task: Task, shard: int, failed: list[int]) -> None:
        self._seen, self._plan, self._task, self._shard = seen, plan, task, shard
        self._items, self._failed = RowItems(plan), np.array(sorted(set(failed)), np.int64)
        self._empty: set[int] = set()

    def at(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        """Look at a batch and return the hashes of its ids, one per item."""
        seen = self._seen
        seen.rows += batch.num_rows
        items, firsts = self._items.of(batch)
        known = np.isin(items, self._failed) if len(self._failed) else np.zeros(len(items), bool)
        empty = find_empty(batch, self._plan)
        names = made_vectors(batch.schema, self._plan)
        for name in names:
            self._look_at_vectors(batch, name, items)
        seen.null_rows += int(empty.sum())
        seen.silent_rows += self._name("vectors" if names else "nulls", batch, items, empty & ~known)
        if names and len(self._failed):
            self._empty.update(items[empty & known].tolist())
        return self._hash_ids(batch, items, firsts, known) if self._plan.work.id else np.zeros(0, np.uint64)

    def _hash_ids(
        self, batch: pa.RecordBatch, items: NDArray[np.int64], firsts: Mask, known: Mask
    ) -> NDArray[np.uint64]:
        ids = batch.select(list(self._plan.work.id))
        rows, hashes = hash_ids(ids if firsts.all() else ids.filter(pa.array(firsts)))
        self._seen.ids += len(rows)
        # The key of a group may be null: the rows without one are a group, too.
        if len(rows) < len(firsts) and not self._plan.work.group_by:
            without = firsts & ~known
            without[np.flatnonzero(firsts)[rows]] = False
            self._seen.no_id += self._name("ids", batch, items, without)
        return hashes

    def needless_errors(self) -> int:
        """How many items have an error on record and a vector. An item that may have no row needs none."""
        looks = bool(self._seen.dims) and not self._task.rows_vary
        return len(self._failed) - len(self._empty) if looks else 0

    def _look_at_vectors(self, batch: pa.RecordBatch, name: str, items: NDArray[np.int64]) -> None:
        seen, column = self._seen, batch.column(name)
        dims = column.type.list_size
        seen.dims |= {dims}
        seen.vector_bytes += (len(column) - column.null_count) * dims * column.type.value_type.bit_width // 8
        norms = np.linalg.norm(vectors(column).astype(np.float32), axis=1)
        finite = np.isfinite(norms)
        if not finite.all():
            present = column.is_valid().to_numpy(zero_copy_only=False)
            seen.not_finite += self._name("finite", batch, items, present & ~finite)
        if finite.any():
            least, most = float(norms[finite].min()), float(norms[finite].max())
            seen.least_norm, seen.most_norm = min(seen.least_norm, least), max(seen.most_norm, most)
            if least <= 0 or (self._task.unit_norm and not 1 - UNIT_SLACK <= least <= most <= 1 + UNIT_SLACK):
                off = np.abs(norms - 1) > UNIT_SLACK if self._task.unit_norm else norms <= 0
                self._name("norms", batch, items, finite & off)

    def _name(self, check: str, batch: pa.RecordBatch, items: NDArray[np.int64], wrong: Mask) -> int:
        return self._seen.bad.name(check, self._shard, batch, items, wrong, self._plan.work.id)


@dataclass(frozen=True, slots=True)
class ReadPart:
    """What one part has, with its errors; the hashes of its ids; its rows, unless they cannot be read."""

    commit: Commit
    seen: SeenInParts
    ids: NDArray[np.uint64]
    rows: StoredRows | None


def read_part_once(ledger: Ledger, plan: Plan, task: Task, commit: Commit, compared: Compared) -> ReadPart:
    failed, unreadable_errors = read_errors(ledger, commit)
    seen, hashes, stored = SeenInParts(), np.zeros(0, np.uint64), None
    try:
        with ledger.store.reader(commit.part) as file:
            found, rows = _digest(file, commit.part_bytes)
            if found == commit.digest:
                place = f"{ledger.url}/{commit.part}"
                wrong = _count_wrong(find_recipe(open_own(rows)[0]), run_of(place), compared)
                rows.seek(0)
                seen, hashes, stored = _look_at_rows(rows, place, plan, task, commit, failed)
                seen.wrong_digest = wrong
            else:
                seen.wrong_digest = 1
    except (OSError, ValueError, KeyError, IndexError, pa.ArrowException, ShardmillError) as error:
        seen.unreadable = f"{commit.part}: {type(error).__name__}"
    seen.errors, seen.unreadable_errors = len(failed), unreadable_errors
    return ReadPart(commit, seen, hashes, stored)


def read_errors(ledger: Ledger, commit: Commit) -> tuple[list[int], str]:
    """The items of a shard that have an error on record, and why the records cannot be read, if so."""
    try:
        return [error["row_in_shard"] for error in ledger.errors.read(commit)], ""
    except (FileNotFoundError, KeyError, ValueError, ShardmillError) as error:
        return [], type(error).__name__


def _look_at_rows(
    file: IO[bytes] | pa.BufferReader, place: str, plan: Plan, task: Task, commit: Commit, failed: list[int]
) -> tuple[SeenInParts, NDArray[np.uint64], StoredRows]:
    seen, windows, numbers, stored = SeenInParts(), WindowCheck(), ItemCheck(), StoredHashes(plan, task)
    look = PartLook(seen, plan, task, commit.shard, failed)
    numbered = task.rows_vary or plan.work.takes_part
    hashes = [np.zeros(0, np.uint64)]
    for batch in read_batches(file, place):
        hashes.append(look.at(batch))
        stored.add(batch)
        if not seen.unsound and (wrong := task.check_rows(batch.select(task.output.names))):
            seen.unsound = f"shard {commit.shard}: {wrong}"
        if numbered:
            numbers.add(batch)
        if has_windows(plan, batch.schema):
            windows.add(batch)
    seen.wrong_rows = int(seen.rows != commit.rows_in_part)
    seen.needless_errors = look.needless_errors()
    if windows.items or windows.wrong:
        seen.windowed_items = windows.items
        seen.wrong_windows = windows.wrong + abs(windows.items - commit.rows + commit.dropped)
    if numbered:
        numbers.close(commit.rows, commit.dropped)
        seen.numbered_items, seen.wrong_items = numbers.items, numbers.wrong
        seen.dropped = numbers.dropped(commit.rows) if task.dropped_file else None
    seen.sound = [commit]
    return seen, np.concatenate(hashes), stored.close()


def _count_wrong(recipe: Recipe | None, run: str, compared: Compared) -> int:
    """How many of the parts that a recipe names are not what was committed; those in `compared` are not read again."""
    wrong = 0
    for part in recipe.parts if recipe is not None else ():
        named = part.place(run), part.digest
        if named not in compared:
            compared[named] = digest(*locate(named[0])) == part.digest
        wrong += not compared[named]
    return wrong


def _digest(file: IO[bytes], part_bytes: int) -> tuple[str, IO[bytes] | pa.BufferReader]:
    """The digest of a part, and where to read its rows: from memory, or from the file again if the part is large."""
    start = file.read(min(part_bytes, _HELD_PART_BYTES) + 1)
    total = hashlib.sha256(start)
    more = False
    while block := file.read(_READ_BYTES):
        more = True
        total.update(block)
    if not more:
        return total.hexdigest(), pa.BufferReader(start)
    file.seek(0)
    return total.hexdigest(), file


def digest(store: Store, key: str) -> str:
    with store.reader(key) as file:
        return _digest(file, 0)[0]
