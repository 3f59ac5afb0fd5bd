"""Keeps the finished rows of an open shard about once a minute, and finds those that earlier attempts kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from shardmill.core.errors import StoreError
from shardmill.core.hashing import add_sums, sum_hashes
from shardmill.ledger import Claim, KeptName, KeptRecords, KeptRows, next_kept
from shardmill.plan import Plan
from shardmill.sinks.base import COUNTS, Finished, Recipe, Sealed

# Rows are kept after this many seconds of work on them, so a shard that takes less keeps none.
KEEP_EVERY_S = 60.0
# More than this in that time is not dear: it is neither held in memory nor written twice.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class KeptPiece:
    """Rows that were kept, and the lineage of their items; None if an earlier version kept them. Its recipe, if it has
    one, says which rows of earlier parts are between them."""

    rows: pa.Table
    lineage: list[pa.RecordBatch] | None
    recipe: Recipe | None = None


# Rows that were written, and the recipe that they have between rows of earlier parts.
Written = tuple[pa.Table, Recipe | None]
Encode = Callable[[list[Written], list[pa.RecordBatch]], bytes]
# Raises ValueError for rows of another schema, and Arrow's errors for what is no rows.
Decode = Callable[[bytes], KeptPiece]


class Keeper:
    """What a worker knows about kept rows. Rows computed in another way than its own are passed over.

    A worker that would do a whole shard in less than a minute, at the pace of its last one, does not look for rows that
    others kept.
    """

    def __init__(
        self,
        records: KeptRecords,
        plan: Plan,
        numerics: Mapping[str, str],
        on_step: Callable[[str, int], None] = lambda step, shard: None,
    ) -> None:
        self.records, self.plan, self.numerics, self.on_step = records, plan, dict(numerics), on_step
        self._finished_at = 0.0
        self._s_per_byte: float | None = None

    def lap_s(self, began: float) -> float:
        """Seconds of work since rows of any shard were last finished, or since this shard began."""
        now = time.monotonic()
        since, self._finished_at = max(began, self._finished_at), now
        return now - since

    def committed(self, shard: int, worked_s: float) -> None:
        """Learn the pace from a shard that was done from its first row to its last."""
        if weight := self.plan.shards[shard].weight_bytes:
            self._s_per_byte = worked_s / weight

    def looks(self, claim: Claim) -> bool:
        if self._s_per_byte is None or claim.crashes or claim.shadow:
            return True
        return self._s_per_byte * self.plan.shards[claim.shard].weight_bytes >= KEEP_EVERY_S

    def read(self, name: KeptName, shard: int, decode: Decode) -> tuple[KeptRows, KeptPiece] | None:
        """A piece that this worker could have made itself; None for any other."""
        found = self.records.read(name, shard, self.plan.id)
        if found is None or found[0].numerics != self.numerics or not _is_sound(found[0]):
            return None
        record, data = found
        with contextlib.suppress(pa.ArrowException, OSError, ValueError, KeyError):
            piece = decode(data)
            return (record, piece) if count_rows((piece.rows, piece.recipe)) == record.part_rows else None
        return None


class Prefix:
    """The kept rows of one shard: those of earlier attempts, and those that this attempt adds."""

    def __init__(self, keeper: Keeper, claim: Claim) -> None:
        self._keeper, self._claim = keeper, claim
        self._keys: list[str] = []
        self._began, self._worked_s, self._since_kept_s = time.monotonic(), 0.0, 0.0
        # None once a minute's rows were too many
        self._rows: list[Written] | None = []
        self._bytes = 0
        self._finished: list[Finished] = []
        self.done = 0
        self.carried: Sealed | None = None

    def take_back(self, decode: Decode) -> Iterator[KeptPiece]:
        """The rows that earlier attempts kept, from the first on without a gap; afterwards `carried` has their counts.

        A piece that cannot be used is passed over; another attempt may have kept the same rows.
        """
        records: list[KeptRows] = []
        with contextlib.suppress(StoreError):
            names = self._keeper.records.find(self._claim.shard) if self._keeper.looks(self._claim) else []
            while (name := next_kept(names, self.done)) is not None:
                names.remove(name)
                if (found := self._keeper.read(name, self._claim.shard, decode)) is not None:
                    record, piece = found
                    yield piece
                    records.append(record)
                    self._keys.append(name.key)
                    self.done = name.stop
        if records:
            self.carried = Sealed(
                rows=self.done,
                lines=0,
                part_rows=sum(record.part_rows for record in records),
                errors=[error for record in records for error in record.errors],
                items_digest=add_sums(record.items_digest for record in records),
                rows_digest=add_sums(record.rows_digest for record in records),
                reused=sum(record.reused for record in records),
                **{name: sum(record.counts[name] for record in records) for name in COUNTS},
            )

    def write(self, rows: pa.Table, recipe: Recipe | None = None) -> None:
        if self._rows is not None:
            self._rows.append((rows, recipe))
            self._bytes += rows.nbytes

    def finish(self, items: Finished, encode: Encode) -> None:
        """Count the rows written before this call as finished, and keep them if it is time."""
        worked_s = self._keeper.lap_s(self._began)
        self._worked_s += worked_s
        self._since_kept_s += worked_s
        if self._rows is None:
            return
        self._finished.append(items)
        if self._bytes > _MOST_BYTES:
            self._rows, self._finished = None, []
        elif self._since_kept_s >= KEEP_EVERY_S and any(f.rows for f in self._finished):
            self._since_kept_s = 0.0
            self._keep(self._rows, encode)

    def _keep(self, rows: list[Written], encode: Encode) -> None:
        keeper, shard, finished = self._keeper, self._claim.shard, self._finished
        piece = KeptRows(
            shard=shard,
            plan=keeper.plan.id,
            first_row=finished[0].first_row,
            rows=sum(f.rows for f in finished),
            part_rows=sum(map(count_rows, rows)),
            counts={name: sum(getattr(f, name) for f in finished) for name in COUNTS},
            numerics=keeper.numerics,
            errors=[error for f in finished for error in f.errors.values()],
            items_digest=add_sums(sum_hashes(f.item_hashes) for f in finished),
            rows_digest=add_sums(f.rows_digest for f in finished),
            reused=sum(f.reused for f in finished),
        )
        known = [f.lineage for f in finished if f.lineage is not None]
        data = encode(rows, known if len(known) == len(finished) else [])
        keeper.on_step("keeping", shard)
        # A hint that cannot be written costs time if the worker dies, nothing else.
        with contextlib.suppress(StoreError):
            self._keys.append(keeper.records.add(piece, self._claim.attempt, data))
            self._rows, self._bytes, self._finished = [], 0, []
        keeper.on_step("kept", shard)

    def delete(self) -> None:
        """Delete the pieces of a shard that is committed; those of a shadow are left to the sweep."""
        if not self.done:
            self._keeper.committed(self._claim.shard, self._worked_s)
        self.forget()

    def forget(self) -> None:
        if self._keys:
            with contextlib.suppress(StoreError):
                self._keeper.records.delete(self._keys)


def count_rows(written: Written) -> int:
    rows, recipe = written
    return rows.num_rows if recipe is None else recipe.rows


def _is_sound(piece: KeptRows) -> bool:
    """Whether the counts and failed rows can be those of its items."""
    rows = [error.get("row_in_shard") for error in piece.errors]
    counts = set(piece.counts) == set(COUNTS) and min(piece.counts.values()) >= 0
    return counts and all(type(row) is int and piece.first_row <= row < piece.stop for row in rows)
