"""Results as rows of a table in PostgreSQL, in batches: each is one transaction, with its record or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.errors import DatabaseError, DatabaseLost
from shardmill.ledger import Claim, Commit, Ledger
from shardmill.plan import Plan
from shardmill.postgres.batches import Batch, Progress
from shardmill.postgres.batches import Ledger as Batches
from shardmill.postgres.connect import first_line, load
from shardmill.postgres.definition import DIGEST
from shardmill.postgres.links import Reference
from shardmill.postgres.presets import Field, TablePreset, find_preset
from shardmill.postgres.session import Session, about_rows
from shardmill.postgres.target import Column, Conflict, Target, quoted
from shardmill.postgres.types import sql_type
from shardmill.postgres.upsert import Upsert
from shardmill.sinks.base import ErrorRecord, Finished, Sealed
from shardmill.sinks.parquet import is_vector
from shardmill.spec import Work

if TYPE_CHECKING:
    import psycopg

# What a task calls the column that tells several rows of one item apart.
WINDOW = "window"


def target_of(work: Work, schema: pa.Schema, text: Sequence[str] = ()) -> Target:
    """The table that rows of this schema go into: `text` are the columns that full-text search looks at."""
    assert work.to is not None
    schema_name, _, table = work.to.table.rpartition(".")
    vector = next(f for f in schema if is_vector(f.type))
    if (preset := preset_of(work)) is not None:
        known = preset.target(vector.type.list_size, schema=schema_name or "public", vector_type=work.to.vector)
        return replace(known, table=table, vector=vector.name, language=work.to.language)
    columns = tuple(Column(f.name, sql_type(f.type)) for f in schema if f.name not in (vector.name, DIGEST))
    return Target(
        schema=schema_name or "public",
        table=table,
        key=(*work.id, WINDOW) if WINDOW in schema.names else work.id,
        columns=columns,
        text=tuple(text),
        dims=vector.type.list_size,
        vector=vector.name,
        vector_type=work.to.vector,
        language=work.to.language,
    )


def preset_of(work: Work) -> TablePreset | None:
    """The well-known table that the rows go into, where one was named: `amazon-reviews-2023:metadata`."""
    if work.to is None or not work.to.preset:
        return None
    name, _, part = work.to.preset.partition(":")
    preset = find_preset(name)
    return preset.metadata if part == "metadata" else preset.reviews


def reference_of(work: Work) -> Reference | None:
    """What reviews refer to, where their products were loaded."""
    if work.to is None or not work.to.products:
        return None
    preset = find_preset(work.to.preset)
    source = next(field.source for field in preset.reviews.fields if field.column.name == preset.product)
    schema, _, table = work.to.products.rpartition(".")
    name = f"{quoted(schema or 'public')}.{quoted(table)}"
    return Reference(source, preset.product, name, preset.metadata.key[0], work.to.unknown_products == "null")


def open_sink(ledger: Ledger, plan: Plan, schema: pa.Schema, *, batch_rows: int, **settings: Any) -> PostgresSink:
    """The sink of a run whose result goes into a table."""
    to = plan.work.to
    assert to is not None
    return PostgresSink(
        ledger,
        plan.id,
        Destination(
            url=to.url,
            target=target_of(plan.work, schema),
            schema=schema,
            fields=preset.fields if (preset := preset_of(plan.work)) is not None else (),
            reference=reference_of(plan.work),
            mode=to.mode,
            batch_rows=batch_rows,
            changed_only=to.changed_only,
            resumes=not plan.work.query,
        ),
        **settings,
    )


@dataclass(frozen=True, slots=True)
class Destination:
    """Where rows go and how."""

    url: str
    target: Target
    schema: pa.Schema
    fields: tuple[Field, ...] = ()
    reference: Reference | None = None
    mode: Conflict = "update"
    batch_rows: int = 512
    changed_only: bool = False
    # Of a source whose rows come and go it is not known which ones an earlier attempt did.
    resumes: bool = True


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
        self.batches = Batches(plan, to.target)
        # Shards are begun on one thread, texts are looked up on a second, and rows are written on a third.
        self._asking, self._looking, self.writing = (Session(to.url, stopped=stopped) for _ in range(3))
        self.upsert = self._asking.transact(lambda c: Upsert(c, to.target, to.schema, to.mode, to.fields, to.reference))

    def begin(self, claim: Claim) -> StagedRows:
        found = self._asking.transact(lambda c: self._find(c, claim.shard))
        return StagedRows(self, claim, found)

    def _find(self, connection: psycopg.Connection[Any], shard: int) -> Progress:
        found = self.batches.progress(connection, shard)
        if found.without_gap and (self.to.resumes or found.complete or not found.batches):
            return found
        self.batches.forget(connection, shard)
        return Progress(())

    def unchanged(self, kept: pa.RecordBatch) -> frozenset[int]:
        """The rows whose text is the one that their vector in the table was made from, where that is asked for."""
        if not self.to.changed_only:
            return frozenset()
        return self._looking.transact(lambda c: self.upsert.unchanged(c, kept))

    def unfit(self, rows: pa.Table) -> dict[int, str]:
        return _unfit(rows, self.upsert.key)

    def orphans(self, rows: pa.Table) -> dict[int, str]:
        """Rows that refer to what is not there and may not be loaded without, with the reason."""
        reference = self.to.reference
        if reference is None or reference.nulls or not rows.num_rows:
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


class StagedRows:
    """Finished rows on their way into the table. What is written stays written: the next attempt goes on behind it."""

    def __init__(self, sink: PostgresSink, claim: Claim, progress: Progress) -> None:
        self._sink, self._shard = sink, claim.shard
        self._at, self.complete = progress.rows, progress.complete
        self.done = progress.rows
        self._progress = progress
        self._rows: list[pa.Table] = []
        self._items: list[NDArray[np.int64]] = []
        self._finished: list[Finished] = []
        self._errors: dict[int, ErrorRecord] = {}
        self._refused: list[ErrorRecord] = []

    def write(self, rows: pa.Table, items: NDArray[np.int64]) -> None:
        self._rows.append(rows.select(self._sink.to.schema.names))
        self._items.append(items)

    def finish(self, items: Finished) -> list[ErrorRecord]:
        """Write full batches of what is there. The records of rows that the server did not take are returned."""
        self._finished.append(items)
        self._errors |= items.errors
        stop, size = items.first_row + items.rows, self._sink.to.batch_rows
        while not self.complete and stop - self._at > size:
            self._flush(self._at + size)
        refused, self._refused = self._refused, []
        return refused

    def seal(self, lines: int) -> Sealed:
        """Write the rest, with the mark that it was the last, and add up what all attempts did."""
        if not self.complete:
            stop = max((f.first_row + f.rows for f in self._finished), default=self._at)
            self._flush(max(stop, self._at), last=True, lines=lines)
        found = self._sink.writing.transact(lambda c: self._sink.batches.progress(c, self._shard))
        if not found.complete:
            raise self._gone()
        self._progress = found
        sums = {name: found.total(name) for name in ("inputs", "tokens", "truncated")}
        return Sealed(rows=found.rows, lines=found.lines, part_rows=found.total("sent"), errors=found.errors, **sums)

    def commit(self, record: Commit) -> bool:
        return self._sink.ledger.commit(replace(record, digest=self._progress.digest.hex()))

    def abandon(self) -> None:
        pass

    def _flush(self, stop: int, *, last: bool = False, lines: int = 0) -> None:
        """Write the items up to `stop`, unless others did so meanwhile; rows that are refused are set aside."""
        while True:
            rows = self._cut(stop)
            batch = self._describe(stop, rows, last, lines)
            stream = self._sink.upsert.encode(rows)
            self._sink.on_step("batch-begun", self._shard)
            try:
                written = self._sink.writing.transact(lambda c, b=batch, s=stream: self._write(c, b, s))  # type: ignore[misc]
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

    def _write(self, connection: psycopg.Connection[Any], batch: Batch, stream: bytes) -> bool:
        sink, shard = self._sink, self._shard
        if not sink.batches.record(connection, shard, batch, sink.worker):
            return False
        sink.on_step("batch-recorded", shard)
        if batch.sent:
            inserted, updated = sink.upsert.write(connection, stream)
            sink.on_step("batch-written", shard)
            sink.batches.count(connection, shard, batch.first_row, inserted, updated)
        sink.on_step("batch-committing", shard)
        return True

    def _catch_up(self) -> None:
        """Another attempt at this shard is ahead: go on where it is."""
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
            f"The records of plan and shard {self._shard} in shardmill.batches were deleted meanwhile.",
            hint="Another load was started with --fresh; run the same command again.",
        )

    def _advance(self, stop: int) -> None:
        """Let go of the items before `stop`."""
        self._at = stop
        kept = [_from(rows, items, stop) for rows, items in zip(self._rows, self._items, strict=True)]
        kept = [(rows, items) for rows, items in kept if len(items)]
        self._rows, self._items = [rows for rows, _ in kept], [items for _, items in kept]
        self._finished = [f for f in self._finished if f.first_row + f.rows > stop]
        self._errors = {item: record for item, record in self._errors.items() if item >= stop}

    def _between(self, stop: int) -> tuple[pa.Table, NDArray[np.int64]]:
        """The rows of items from here to `stop` that are not errors."""
        if not self._rows:
            return self._sink.to.schema.empty_table(), np.zeros(0, np.int64)
        rows, items = pa.concat_tables(self._rows), np.concatenate(self._items)
        good = (items >= self._at) & (items < stop) & ~np.isin(items, list(self._errors))
        return rows.filter(pa.array(good)), items[good]

    def _cut(self, stop: int) -> pa.Table:
        """The rows to send: no nulls in the key, no NUL in a text, no unknown product, each key once."""
        rows, items = self._between(stop)
        for find in (self._sink.unfit, self._sink.orphans):
            reasons = find(rows)
            for row, reason in reasons.items():
                self._refuse(int(items[row]), reason)
            if reasons:
                rows, items = self._between(stop)
        return _once(rows, self._sink.upsert.key, self._sink.to.mode)

    def _refuse(self, item: int, reason: str) -> None:
        finished = next(f for f in self._finished if f.first_row <= item < f.first_row + f.rows)
        if item not in self._errors:
            self._errors[item] = finished.describe(item, reason)
            self._refused.append(self._errors[item])

    def _describe(self, stop: int, rows: pa.Table, last: bool, lines: int) -> Batch:
        sums = dict.fromkeys(("inputs", "tokens", "truncated"), 0)
        for block in self._finished:
            low, high = (min(max(at - block.first_row, 0), block.rows) for at in (self._at, stop))
            for name in sums:
                whole = getattr(block, name)
                sums[name] += whole * high // max(1, block.rows) - whole * low // max(1, block.rows)
        return Batch(
            first_row=self._at,
            rows=stop - self._at,
            last=last,
            lines=lines,
            sent=rows.num_rows,
            errors=[record for item, record in sorted(self._errors.items()) if item < stop],
            digest=self._sink.upsert.digest(rows),
            **sums,
        )

    def _set_aside(self, stop: int, error: Exception) -> None:
        """Find the rows that the server refuses, by halves, in a transaction that is not kept."""
        rows, items = self._between(stop)
        found: dict[int, str] = {}

        def look(connection: psycopg.Connection[Any]) -> None:
            found.clear()
            _find_refused(connection, self._sink.upsert, rows, np.arange(len(items)), found)

        self._sink.writing.transact(look, keep=False)
        if not found:
            raise DatabaseError(f"{self._sink.to.target.name}: {first_line(error)}.") from error
        for row, reason in found.items():
            self._refuse(int(items[row]), reason)


def _find_refused(
    connection: psycopg.Connection[Any], upsert: Upsert, rows: pa.Table, some: NDArray[np.int64], found: dict[int, str]
) -> None:
    wanted = _once(rows.take(pa.array(some)), upsert.key, upsert.mode)
    try:
        with connection.transaction():
            connection.execute("DROP TABLE IF EXISTS pg_temp.shardmill_batch")
            upsert.write(connection, upsert.encode(wanted))
    except load().Error as error:
        if not about_rows(error):
            raise
        if len(some) == 1:
            found[int(some[0])] = f"PostgreSQL: {first_line(error)}"[:500]
            return
        for half in np.array_split(some, 2):
            _find_refused(connection, upsert, rows, half, found)


def _from(rows: pa.Table, items: NDArray[np.int64], stop: int) -> tuple[pa.Table, NDArray[np.int64]]:
    start = int(np.searchsorted(items, stop))
    return rows.slice(start), items[start:]


def _unfit(rows: pa.Table, key: Sequence[str]) -> dict[int, str]:
    """Rows that no server takes, with the reason."""
    reasons: dict[int, str] = {}
    for name in rows.column_names:
        column = rows.column(name)
        if name in key and column.null_count:
            for row in np.flatnonzero(column.is_null().to_numpy()):
                reasons.setdefault(int(row), f"{name!r} is null, and it is part of the key")
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            for row in np.flatnonzero(pc.match_substring(column, "\0").fill_null(False).to_numpy()):
                reasons.setdefault(int(row), f"{name!r} has a NUL character, which PostgreSQL does not store")
    return reasons


def _once(rows: pa.Table, key: Sequence[str], mode: Conflict) -> pa.Table:
    """Each key once: the last row of it where later ones update, the first where they are skipped."""
    keys = list(zip(*(rows.column(n).to_pylist() for n in key), strict=True))
    if len(set(keys)) == len(keys):
        return rows
    if mode == "fail":
        seen: set[tuple[Any, ...]] = set()
        twice = next(k for k in keys if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        said = ", ".join(f"{n} {v!r}" for n, v in zip(key, twice, strict=True))
        raise DatabaseError(
            f"The source has {said} twice, and --mode is fail.", hint="--mode update takes the last, skip the first."
        )
    order = enumerate(keys) if mode == "update" else reversed(list(enumerate(keys)))
    kept = {values: row for row, values in order}
    return rows.take(pa.array(sorted(kept.values())))
