"""Results as rows of a PostgreSQL table, in batches: one transaction writes a batch and its record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import DatabaseError, DatabaseLost
from shardmill.core.hashing import add_sums, sum_hashes
from shardmill.ledger import Claim, Commit, Ledger
from shardmill.postgres.batches import BatchLedger, BatchRecord, ShardProgress
from shardmill.postgres.connect import first_line, load
from shardmill.postgres.fitting import find_refused, once, unfit
from shardmill.postgres.session import Session, about_rows
from shardmill.postgres.upsert import Upsert
from shardmill.sinks.base import COUNTS, ErrorRecord, Finished, Recipe, Sealed, SinkContext
from shardmill.sinks.destination import Destination
from shardmill.sinks.digests import TEXT_DIGEST

if TYPE_CHECKING:
    import psycopg


def open_sink(context: SinkContext) -> PostgresSink:
    """The sink of a run whose result goes into a table."""
    schema = pa.schema([*context.kept, TEXT_DIGEST, *context.written])
    return PostgresSink(
        context.ledger,
        context.plan.id,
        Destination.of(context.plan, schema, context.batch_rows),
        worker=context.worker,
        on_step=context.on_step,
        stopped=context.stopped,
    )


class PostgresSink:
    def __init__(
        self,
        ledger: Ledger,
        plan: str,
        to: Destination,
        *,
        worker: str = "",
        on_step: Callable[[str, int], None] = lambda step, shard: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ledger, self.to, self.worker, self.on_step = ledger, to, worker, on_step
        self.salt = to.salt
        self.batches = BatchLedger(plan, to.target)
        # One thread begins shards, a second looks up texts, and a third writes rows.
        self._asking, self._looking, self.writing = (Session(to.url, stopped=stopped) for _ in range(3))
        self.upsert = self._asking.transact(
            lambda c: Upsert(c, to.target, to.schema, to.mode, to.fields, to.reference, to.changed_only)
        )

    def begin(self, claim: Claim) -> StagedRows:
        found = self._asking.transact(lambda c: self._find(c, claim.shard))
        return StagedRows(self, claim, found)

    def _find(self, connection: psycopg.Connection[Any], shard: int) -> ShardProgress:
        found = self.batches.progress(connection, shard)
        if found.without_gap and (self.to.resumes or found.complete or not found.batches):
            return found
        self.batches.forget(connection, shard)
        return ShardProgress(())

    def unchanged(self, kept: pa.RecordBatch) -> frozenset[int]:
        """With `changed_only`, the rows whose result in the table was made from the same."""
        if not self.to.changed_only:
            return frozenset()
        return self._looking.transact(lambda c: self.upsert.unchanged(c, kept))

    def unfit(self, rows: pa.Table) -> dict[int, str]:
        return unfit(rows, self.upsert.key)

    @property
    def asks(self) -> bool:
        """Whether to ask the server which rows of a batch refer to a missing row."""
        return self.to.reference is not None and not self.to.reference.nulls

    def orphans(self, rows: pa.Table) -> dict[int, str]:
        """Rows that refer to a missing row and must not be loaded, with the reason."""
        reference = self.to.reference
        if reference is None or not self.asks or not rows.num_rows:
            return {}
        values = rows.column(reference.source).to_pylist()
        unknown = self.writing.transact(lambda c: reference.unknown(c, values))
        return {
            row: f"{reference.source} {value!r} is not in {reference.table}"
            for row, value in enumerate(values)
            if value in unknown
        }

    def close(self) -> None:
        self._looking.close()
        self._asking.close()
        self.writing.close()


@dataclass(frozen=True, slots=True)
class _Ready:
    """An encoded batch. Whether it is the last of its shard is known only when it is sent."""

    batch: BatchRecord
    stream: bytes


class StagedRows:
    """Finished rows on their way into the table. Written batches stay: the next attempt resumes after them."""

    carried: Sealed | None = None

    @property
    def done_digest(self) -> str:
        return self._done_digest

    def distrust(self) -> str:
        return "Load it again from the start: --fresh. The rows in the table stay until they are replaced."

    def __init__(self, sink: PostgresSink, claim: Claim, progress: ShardProgress) -> None:
        self._sink, self._shard = sink, claim.shard
        self._at, self.complete = progress.rows, progress.complete
        self.done, self._done_digest = progress.rows, progress.items_digest
        self._progress = progress
        self._rows: list[pa.Table] = []
        self._items: list[NDArray[np.int64]] = []
        self._finished: list[Finished] = []
        self._errors: dict[int, ErrorRecord] = {}
        self._refused: list[ErrorRecord] = []
        self._ahead: _Ready | None = None

    def write(self, rows: pa.Table, items: NDArray[np.int64], recipe: Recipe | None = None) -> None:
        self._rows.append(rows.select(self._sink.to.schema.names))
        self._items.append(items)

    def finish(self, items: Finished) -> list[ErrorRecord]:
        """Write all full batches; returns the error records of rows that were refused."""
        self._finished.append(items)
        self._errors |= items.errors
        stop, size = items.first_row + items.rows, self._sink.to.batch_rows
        while not self.complete and stop - self._at > size:
            self._flush(self._at + size)
        refused, self._refused = self._refused, []
        return refused

    def seal(self, lines: int) -> Sealed:
        """Write the rest, marked as the last batch, and add up all attempts."""
        if not self.complete:
            stop = max((f.first_row + f.rows for f in self._finished), default=self._at)
            self._flush(max(stop, self._at), last=True, lines=lines)
        found = self._sink.writing.transact(lambda c: self._sink.batches.progress(c, self._shard))
        if not found.complete:
            raise self._gone()
        self._progress = found
        sums: dict[str, Any] = {name: found.total(name) for name in COUNTS}
        sums |= {"part_rows": found.total("sent"), "items_digest": found.items_digest}
        return Sealed(rows=found.rows, lines=found.lines, errors=found.errors, **sums)

    def commit(self, record: Commit) -> bool:
        return self._sink.ledger.commits.add(replace(record, digest=self._progress.digest.hex()))

    def abandon(self) -> None:
        pass

    def _flush(self, stop: int, *, last: bool = False, lines: int = 0) -> None:
        """Write the items up to `stop`, unless another attempt did; refused rows are set aside."""
        while True:
            ready = self._take(stop)
            batch = replace(ready.batch, last=last, lines=lines)
            self._sink.on_step("batch-begun", self._shard)
            try:
                written = self._sink.writing.transact(lambda c, b=batch, s=ready.stream: self._write(c, b, s))  # type: ignore[misc]
            except load().Error as error:
                if not about_rows(error):
                    raise
                self._set_aside(stop, error)
                continue
            if written:
                self._sink.on_step("batch-committed", self._shard)
                self._advance(stop)
                self.complete = last
                return
            self._catch_up()
            if self.complete or (self._at >= stop and not last):
                return
            stop = max(stop, self._at)

    def _write(self, connection: psycopg.Connection[Any], batch: BatchRecord, stream: bytes) -> bool:
        sink, shard = self._sink, self._shard
        if not sink.batches.record(connection, shard, batch, sink.worker):
            return False
        sink.on_step("batch-recorded", shard)
        if batch.sent:
            inserted, updated = sink.upsert.write(connection, stream, lambda: self._look_ahead(batch.stop))
            sink.on_step("batch-written", shard)
            sink.batches.count(connection, shard, batch.first_row, inserted, updated)
        sink.on_step("batch-committing", shard)
        return True

    def _take(self, stop: int) -> _Ready:
        ready, self._ahead = self._ahead, None
        if ready is not None and (ready.batch.first_row, ready.batch.stop) == (self._at, stop):
            return ready
        return self._make(self._at, stop)

    def _look_ahead(self, start: int) -> None:
        """Encode the next batch while the server writes this one. No queries here: a transaction is open."""
        stop = start + self._sink.to.batch_rows
        there = max((f.first_row + f.rows for f in self._finished), default=0)
        if self._ahead is not None or self._sink.asks or there < stop:
            return
        # The error is raised again when this batch is due.
        with contextlib.suppress(DatabaseError):
            self._ahead = self._make(start, stop)

    def _make(self, start: int, stop: int) -> _Ready:
        rows = self._cut(start, stop)
        return _Ready(self._describe(start, stop, rows), self._sink.upsert.encode(rows))

    def _catch_up(self) -> None:
        """Another attempt at this shard is ahead: continue where it is."""
        found = self._sink.writing.transact(lambda c: self._sink.batches.progress(c, self._shard))
        if found.complete:
            self.complete = True
            self._advance(max(found.rows, self._at))
        elif found.rows > self._at:
            self._advance(found.rows)
        else:
            raise self._gone()

    def _gone(self) -> DatabaseLost:
        return DatabaseLost(
            f"The records of shard {self._shard} in shardmill.batches were deleted during the load.",
            hint="Another load was started with --fresh; run the same command again.",
        )

    def _advance(self, stop: int) -> None:
        """Drop the items before `stop`."""
        self._at = stop
        kept = [_from(rows, items, stop) for rows, items in zip(self._rows, self._items, strict=True)]
        kept = [(rows, items) for rows, items in kept if len(items)]
        self._rows, self._items = [rows for rows, _ in kept], [items for _, items in kept]
        self._finished = [f for f in self._finished if f.first_row + f.rows > stop]
        self._errors = {item: record for item, record in self._errors.items() if item >= stop}

    def _between(self, start: int, stop: int) -> tuple[pa.Table, NDArray[np.int64]]:
        """The rows of items from `start` to `stop` that are not errors."""
        if not self._rows:
            return self._sink.to.schema.empty_table(), np.zeros(0, np.int64)
        rows, items = pa.concat_tables(self._rows), np.concatenate(self._items)
        good = (items >= start) & (items < stop) & ~np.isin(items, list(self._errors))
        return rows.filter(pa.array(good)), items[good]

    def _cut(self, start: int, stop: int) -> pa.Table:
        """The rows to send: no nulls in the key, no NUL in a text, no unknown product, each key once."""
        rows, items = self._between(start, stop)
        for find in (self._sink.unfit, self._sink.orphans):
            reasons = find(rows)
            for row, reason in reasons.items():
                self._refuse(int(items[row]), reason)
            if reasons:
                rows, items = self._between(start, stop)
        return once(rows, self._sink.upsert.key, self._sink.to.mode)

    def _refuse(self, item: int, reason: str) -> None:
        finished = next(f for f in self._finished if f.first_row <= item < f.first_row + f.rows)
        if item not in self._errors:
            self._errors[item] = finished.describe(item, reason)
            self._refused.append(self._errors[item])

    def _describe(self, start: int, stop: int, rows: pa.Table) -> BatchRecord:
        sums, digests = dict.fromkeys(COUNTS, 0), []
        for block in self._finished:
            low, high = (min(max(at - block.first_row, 0), block.rows) for at in (start, stop))
            digests.append(sum_hashes(block.item_hashes[low:high]))
            sums["dropped"] += sum(start <= item < stop for item in block.gone)
            for name in COUNTS[:-1]:
                whole = getattr(block, name)
                sums[name] += whole * high // max(1, block.rows) - whole * low // max(1, block.rows)
        return BatchRecord(
            first_row=start,
            rows=stop - start,
            last=False,
            lines=0,
            sent=rows.num_rows,
            errors=[record for item, record in sorted(self._errors.items()) if start <= item < stop],
            digest=self._sink.upsert.digest(rows),
            items_digest=bytes.fromhex(add_sums(digests)) if digests else None,
            **sums,
        )

    def _set_aside(self, stop: int, error: Exception) -> None:
        """Find the rows that the server refuses, in a transaction that is rolled back."""
        rows, items = self._between(self._at, stop)
        found: dict[int, str] = {}

        def look(connection: psycopg.Connection[Any]) -> None:
            found.clear()
            find_refused(connection, self._sink.upsert, rows, np.arange(len(items)), found)

        self._sink.writing.transact(look, keep=False)
        if not found:
            raise DatabaseError(f"{self._sink.to.target.name}: {first_line(error)}.") from error
        for row, reason in found.items():
            self._refuse(int(items[row]), reason)


def _from(rows: pa.Table, items: NDArray[np.int64], stop: int) -> tuple[pa.Table, NDArray[np.int64]]:
    start = int(np.searchsorted(items, stop))
    return rows.slice(start), items[start:]
