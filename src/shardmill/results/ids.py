"""Ids that occur more than once, found by hashes of eight bytes, in memory that does not grow with their number."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import ShardmillError
from shardmill.core.hashing import Hashes, hash_rows
from shardmill.core.pool import in_order
from shardmill.ledger import Commit, Ledger
from shardmill.plan import ITEM, Plan
from shardmill.results.bad import MOST_NAMED, BadRow
from shardmill.results.merge import schema_of
from shardmill.results.report import Check
from shardmill.results.seen import SeenInParts
from shardmill.results.windows import RowItems, has_items, has_windows
from shardmill.sinks.parquet import read_part
from shardmill.tasks.base import WINDOW

_HELD_BYTES = 64 << 20
_BUCKET_BITS = 10
# How many hashes that occur twice are checked by comparing their ids in full; the rest is counted by hash.
_COMPARED = 1 << 16


def hash_ids(ids: pa.RecordBatch) -> tuple[NDArray[np.int64], Hashes]:
    """The rows that have an id, and its hash for each: equal ids have equal hashes in every batch."""
    missing = np.ones(ids.num_rows, bool)
    for column in ids.columns:
        missing &= column.is_null().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(~missing)
    return rows, hash_rows(ids)[rows]


class IdHashes:
    """Hashes of many ids: in memory up to `held_bytes`, then in files of a temporary folder, by their highest bits.

    Each file is sorted alone, so that memory holds a thousandth of the hashes at a time.
    """

    def __init__(self, held_bytes: int = _HELD_BYTES) -> None:
        self._held = np.empty(max(1, held_bytes // 8), np.uint64)
        self._count = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> IdHashes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, hashes: Hashes) -> None:
        while len(hashes):
            room = self._held[self._count : self._count + len(hashes)]
            room[:] = hashes[: len(room)]
            self._count += len(room)
            hashes = hashes[len(room) :]
            if self._count == len(self._held):
                self._spill()

    def _spill(self) -> None:
        held = self._held[: self._count]
        held.sort()
        firsts = np.arange(1, 1 << _BUCKET_BITS, dtype=np.uint64) << np.uint64(64 - _BUCKET_BITS)
        try:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="shardmill-ids-")
            for bucket, hashes in enumerate(np.split(held, np.searchsorted(held, firsts))):
                if len(hashes):
                    with open(Path(self._folder.name) / f"{bucket:04d}", "ab") as file:
                        file.write(hashes.data)
        except OSError as error:
            raise ShardmillError(
                f"The hashes of the ids cannot be written to {tempfile.gettempdir()}: {error}.",
                hint="They need eight bytes per id: free space there, or name another folder with TMPDIR.",
            ) from error
        self._count = 0

    def repeated(self) -> Iterator[Hashes]:
        """The hashes that occur more than once, each once."""
        if self._folder is None:
            yield _repeated(self._held[: self._count])
            return
        self._spill()
        yield from in_order(
            lambda path: _repeated(np.fromfile(path, np.uint64)), sorted(Path(self._folder.name).iterdir())
        )


def _repeated(hashes: Hashes) -> Hashes:
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def check_ids(ledger: Ledger, plan: Plan, seen: SeenInParts, hashes: IdHashes) -> Check:
    """Each item has an id, unless it failed, and each id occurs once; ids whose hash occurs twice are compared."""
    if not plan.work.id:
        return Check("ids", True, "the row numbers of the source")
    count, example, rows = _find_repeated(ledger, plan, seen.sound, hashes)
    wrong = [f"{seen.no_id:,} rows have none and no error"] * bool(seen.no_id)
    wrong += [f"{count:,} ids occur more than once, e.g. {example}"] * bool(count)
    if not wrong:
        return Check("ids", True, f"{seen.ids:,} ids, each once")
    advice = "all rows are kept: give --id more fields, or none"
    return Check("ids", False, f"{'; '.join(wrong)}; {advice}", (*seen.bad.of("ids"), *rows)[:MOST_NAMED])


def _find_repeated(
    ledger: Ledger, plan: Plan, commits: Sequence[Commit], hashes: IdHashes
) -> tuple[int, str, list[BadRow]]:
    """How many ids occur more than once, one of them, and the rows where they occur again."""
    suspected, compared = 0, np.zeros(0, np.uint64)
    for some in hashes.repeated():
        suspected += len(some)
        compared = np.concatenate([compared, some[: _COMPARED - len(compared)]])
    first: dict[tuple[Any, ...], int] = {}
    again: dict[tuple[Any, ...], int] = {}
    before = 0
    where: dict[tuple[Any, ...], BadRow] = {}
    commits = commits if suspected else ()
    asked = in_order(lambda c: _find(ledger, plan, c, compared), commits)
    for commit, (rows, found) in zip(commits, asked, strict=True):
        for row, value in found:
            if value in first and value not in again:
                again[value] = before + row
                where[value] = {"shard": commit.shard, "row": row, "id": dict(zip(plan.work.id, value, strict=True))}
            first.setdefault(value, before + row)
        before += rows
    if not again:
        return 0, "", []
    value = next(iter(again))
    example = f"{', '.join(str(v) for v in value)} in rows {first[value]:,} and {again[value]:,}"
    return len(again) + suspected - len(compared), example, list(where.values())


def _find(ledger: Ledger, plan: Plan, commit: Commit, hashes: Hashes) -> tuple[int, list[tuple[int, tuple[Any, ...]]]]:
    """How many items a part has, and the number and id of each whose hash is among these."""
    names = list(plan.work.id)
    schema, numbers = schema_of(ledger, commit), RowItems(plan)
    marks = [ITEM] if has_items(plan, schema) else [WINDOW] if has_windows(plan, schema) else []
    items, found = 0, []
    for batch in read_part(ledger.store, commit, [*names, *marks]):
        ids = batch.select(names).filter(pa.array(numbers.of(batch)[1]))
        rows, own = hash_ids(ids)
        wanted = rows[np.isin(own, hashes)]
        values = zip(*(column.to_pylist() for column in ids.take(pa.array(wanted)).columns), strict=True)
        found += [(items + int(row), value) for row, value in zip(wanted, values, strict=True)]
        items += ids.num_rows
    return items, found
