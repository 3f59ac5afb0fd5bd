"""What one pass over the parts sees: each part is read once and checked alone, on all cores."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import ShardmillError
from shardmill.ledger import Commit, Ledger
from shardmill.plan import Plan
from shardmill.results.empty import EmptyRows
from shardmill.results.ids import hash_ids
from shardmill.results.windows import FirstRows, ItemCheck, WindowCheck, has_windows
from shardmill.sinks.parquet import is_vector, read_batches, vectors
from shardmill.store import Store
from shardmill.tasks.base import Task

_READ_BYTES = 4 << 20
# A larger part is read twice, once for its digest and once for its rows, as it is not held in memory.
_HELD_PART_BYTES = 32 << 20


@dataclass(slots=True)
class SeenInParts:
    """Totals of a part, or of many: `sound` are the commits whose part was read to its end."""

    rows: int = 0
    windowed_items: int = 0
    wrong_windows: int = 0
    numbered_items: int = 0
    wrong_items: int = 0
    ids: int = 0
    nulls: int = 0
    null_rows: int = 0
    silent_rows: int = 0
    not_finite: int = 0
    wrong_digest: int = 0
    wrong_rows: int = 0
    vector_bytes: int = 0
    errors: int = 0
    least_norm: float = float("inf")
    most_norm: float = 0.0
    dims: frozenset[int] = frozenset()
    unreadable: str = ""
    unsound: str = ""
    unreadable_errors: str = ""
    sound: list[Commit] = field(default_factory=list)

    def add(self, other: SeenInParts) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.least_norm = min(self.least_norm, other.least_norm)
        self.most_norm = max(self.most_norm, other.most_norm)
        self.dims |= other.dims
        self.unreadable = self.unreadable or other.unreadable
        self.unsound = self.unsound or other.unsound
        self.unreadable_errors = self.unreadable_errors or other.unreadable_errors
        self.sound += other.sound

    def look_at(self, batch: pa.RecordBatch) -> None:
        """Count rows and check the vectors."""
        self.rows += batch.num_rows
        for column in filter(lambda c: is_vector(c.type), batch.columns):
            dims = column.type.list_size
            self.nulls += column.null_count
            self.dims |= {dims}
            present = column.drop_null()
            self.vector_bytes += len(present) * dims * column.type.value_type.bit_width // 8
            norms = np.linalg.norm(vectors(present).astype(np.float32), axis=1)
            finite = np.isfinite(norms)
            self.not_finite += int((~finite).sum())
            if finite.any():
                self.least_norm = min(self.least_norm, float(norms[finite].min()))
                self.most_norm = max(self.most_norm, float(norms[finite].max()))


_SUMS = tuple(name for name, kind in SeenInParts.__annotations__.items() if kind == "int")


def read_part_once(ledger: Ledger, plan: Plan, task: Task, commit: Commit) -> tuple[SeenInParts, NDArray[np.uint64]]:
    """What one part has, with its errors, and the hashes of its ids."""
    failed, unreadable_errors = read_errors(ledger, commit)
    seen, hashes = SeenInParts(), np.zeros(0, np.uint64)
    try:
        with ledger.store.reader(commit.part) as file:
            found, rows = _digest(file, commit.part_bytes)
            if found == commit.digest:
                seen, hashes = _look_at_rows(rows, plan, task, commit, failed)
            else:
                seen.wrong_digest = 1
    except (OSError, ValueError, pa.ArrowException, ShardmillError) as error:
        seen.unreadable = f"{commit.part}: {type(error).__name__}"
    seen.errors, seen.unreadable_errors = len(failed), unreadable_errors
    return seen, hashes


def read_errors(ledger: Ledger, commit: Commit) -> tuple[list[int], str]:
    """The items of a shard that have an error on record, and why the records cannot be read, if so."""
    try:
        return [error["row_in_shard"] for error in ledger.errors.read(commit)], ""
    except (FileNotFoundError, KeyError, ValueError, ShardmillError) as error:
        return [], type(error).__name__


def _look_at_rows(
    file: IO[bytes] | pa.BufferReader, plan: Plan, task: Task, commit: Commit, failed: list[int]
) -> tuple[SeenInParts, NDArray[np.uint64]]:
    seen, windows, numbers, empty = SeenInParts(), WindowCheck(), ItemCheck(), EmptyRows(plan)
    firsts, numbered = FirstRows(plan), task.rows_vary
    hashes = [np.zeros(0, np.uint64)]
    for batch in read_batches(file):
        seen.look_at(batch)
        empty.add(batch)
        if not seen.unsound and (wrong := task.check_rows(batch.select(task.output.names))):
            seen.unsound = f"shard {commit.shard}: {wrong}"
        if numbered:
            numbers.add(batch)
        elif has_windows(plan, batch.schema):
            windows.add(batch)
        if plan.work.id:
            items = firsts.of(batch)
            seen.ids += items.num_rows
            hashes.append(hash_ids(items.select(list(plan.work.id)))[1])
    seen.wrong_rows = int(seen.rows != commit.rows_in_part)
    seen.null_rows, seen.silent_rows = len(empty.items), empty.without(failed)
    if windows.items or windows.wrong:
        seen.windowed_items = windows.items
        seen.wrong_windows = windows.wrong + abs(windows.items - commit.rows)
    if numbered:
        numbers.close(commit.rows, commit.dropped)
        seen.numbered_items, seen.wrong_items = numbers.items, numbers.wrong
    seen.sound = [commit]
    return seen, np.concatenate(hashes)


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
