"""Rows that are computed again from the source, and how well what is stored fits them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.batching.budget import plan_batches
from shardmill.core.errors import DeviceOutOfMemory
from shardmill.ledger import Commit, Ledger
from shardmill.plan import BYTES, Plan, Shard
from shardmill.results.rounding import RoundedVectors
from shardmill.results.stored import find_items, fit, is_same, pick_items, pick_rows
from shardmill.sinks.parquet import is_vector, read_part
from shardmill.sources import Fields, open_source
from shardmill.tasks.base import WINDOW, Prepared, Task, add_bytes, fields_of, number_items

# A worker adapts its batches to the memory; here they are small from the start.
_SHARE_OF_BUDGET = 4

# The name of a column, or of what else differs, and how well it fits: 1 is the same.
Fit = tuple[str, float]
# From the name of a column, a stored value and the same one made again.
Measure = Callable[[str, Any, Any], float]
Distance = Callable[[str, Any, Any], float | None]


@dataclass(slots=True)
class RowsAgain:
    """Computes items of a run again. Of items with many windows, those beyond `windows_left` are not computed.

    `task` computes them, and `distance` is that of the run's own task. `rounded` gets the vectors of a run whose
    precision or type was asked for, beside those computed now.
    """

    ledger: Ledger
    plan: Plan
    task: Task
    distance: Distance
    windows_left: int
    left_out: set[int] = field(default_factory=set)
    rounded: RoundedVectors | None = None

    def compare(self, shard: Shard, commit: Commit, items: Sequence[int]) -> Iterator[tuple[int, str, float]]:
        """The number of each item and how well its columns fit, one by one; those not computed are in `left_out`."""
        self.left_out = set()
        work, task = self.plan.work, self.task
        stored = pick_rows(read_part(self.ledger.store, commit), items, self.plan)
        source = open_source(self.plan.stat, Fields.of(work), work.max_item_bytes).read(shard)
        missing = set(items)
        for texts, kept, own in find_items(source, stored, work.id) if work.query else pick_items(source, items):
            missing -= set(own)
            for item, name, each in self._compare_kept(kept, own, stored):
                yield item, name, each
            if task.agreement(commit.precision) == "none":
                continue
            wanted = [
                i
                for i, (item, text) in enumerate(zip(own, texts, strict=True))
                if text is not None and (_was_done(stored[item], task) if item in stored else task.rows_vary)
            ]
            fields = self._fields(kept, shard, own)
            for i, name, each in self._compute(texts, fields, wanted, [stored.get(item) for item in own]):
                if not name:
                    self.left_out.add(own[i])
                yield own[i], name, each
        if task.rows_vary and work.query:
            missing &= set(stored)
        yield from ((item, "the row", 0.0) for item in sorted(missing))

    def _compare_kept(
        self, kept: pa.RecordBatch, own: list[int], stored: dict[int, list[pa.RecordBatch]]
    ) -> Iterator[tuple[int, str, float]]:
        for i, item in enumerate(own):
            if item in stored:
                for name in self.plan.kept:
                    value = kept.column(name)[i]
                    same = all(is_same(each, value) for rows in stored[item] for each in rows.column(name))
                    yield item, name, float(same)
            elif not self.task.rows_vary:
                yield item, "the row", 0.0

    def _fields(self, kept: pa.RecordBatch, shard: Shard, own: list[int]) -> list[pa.RecordBatch | None]:
        """What the task is given of each item beside its text."""
        task = self.task
        of_item: list[pa.RecordBatch | None] = [None] * len(own)
        contents = kept.column(BYTES) if BYTES in kept.schema.names else None
        for i, item in enumerate(own) if task.fields or task.numbers_items or contents is not None else ():
            fields = add_bytes(fields_of(task, kept), contents)
            fields = None if fields is None else fields.slice(i, 1)
            of_item[i] = number_items(fields, shard.index, item, 1) if task.numbers_items else fields
        return of_item

    def _compute(
        self,
        texts: list[str | None],
        fields: list[pa.RecordBatch | None],
        wanted: list[int],
        stored: list[list[pa.RecordBatch] | None],
    ) -> Iterator[tuple[int, str, float]]:
        if (together := self._compute_together(texts, fields, wanted)) is not None:
            for i, made in together:
                (own_rows, *_) = stored[i] or []
                for name in made.schema.names:
                    yield i, name, self._fit(name, own_rows.column(name)[0], made.column(name)[0])
            return
        task = self.task
        for i in wanted:
            own = fields[i]
            prepared = task.prepare([texts[i]]) if own is None else task.prepare([texts[i]], own)
            of_item = pa.Table.from_batches(rows) if (rows := stored[i]) else None
            if task.rows_vary:
                yield from ((i, *each) for each in _compare_all(task, prepared, of_item, self._fit))
                continue
            assert of_item is not None
            if WINDOW not in task.output.names and len(prepared.inputs) > 1:
                if len(prepared.inputs) > self.windows_left:
                    yield i, "", 1.0
                    continue
                self.windows_left -= len(prepared.inputs)
            yield from ((i, *each) for each in _compare_item(task, prepared, of_item, self._fit))

    def _fit(self, name: str, stored: Any, again: Any) -> float:
        if self.rounded is not None and is_vector(again.type):
            self.rounded.add(stored, again)
        distance = self.distance(name, stored, again)
        return fit(stored, again) if distance is None else 1.0 - distance

    def _compute_together(
        self, texts: list[str | None], fields: list[pa.RecordBatch | None], wanted: list[int]
    ) -> list[tuple[int, pa.RecordBatch]] | None:
        """The rows of many items in batches; None if an item may have several, or if rows depend on their batch."""
        task = self.task
        if len(wanted) < 2 or task.rows_vary or WINDOW in task.output.names or any(f is not None for f in fields):
            return None
        if not any(is_vector(f.type) for f in task.output):
            return None
        prepared = task.prepare([texts[i] for i in wanted])
        if prepared.owners is not None or isinstance(prepared.inputs, pa.RecordBatch) or task.combine(1) is not None:
            return None
        made: list[tuple[int, pa.RecordBatch]] = []
        try:
            for batch in plan_batches(prepared.costs, task.batch_budget // _SHARE_OF_BUDGET, padded=task.padded):
                rows = task.run([prepared.inputs[i] for i in batch]).rows
                made += [(wanted[i], rows.slice(at, 1)) for at, i in enumerate(batch)]
        except DeviceOutOfMemory:
            return None
        return sorted(made, key=lambda each: each[0])


def _compare_item(task: Task, prepared: Prepared, stored: pa.Table, fit: Measure) -> Iterator[Fit]:
    """How well the stored rows of one item match its text; of many windows the last and a random one are computed."""
    combined = task.combine(1)
    if combined is not None:
        for each in prepared.inputs:
            combined.add(np.zeros(1, np.int64), task.run([each]).rows)
        made, picked = combined.finish().rows, [0]
    elif stored.num_rows != len(prepared.inputs):
        yield "the number of windows", 0.0
        return
    else:
        picked = sorted({stored.num_rows - 1, random.SystemRandom().randrange(stored.num_rows)})
        made = task.run([prepared.inputs[i] for i in picked]).rows
    for name in made.schema.names:
        for again, row in zip(made.column(name), picked, strict=True):
            yield name, fit(name, stored.column(name)[row], again)


def _compare_all(task: Task, prepared: Prepared, stored: pa.Table | None, fit: Measure) -> Iterator[Fit]:
    """How well the stored rows of one item, perhaps none, match what its input gives."""
    made = task.run(prepared.inputs).rows
    same = made.num_rows == (stored.num_rows if stored is not None else 0)
    yield "the number of rows", float(same)
    if same and stored is not None:
        for name in made.schema.names:
            for again, value in zip(made.column(name), stored.column(name), strict=True):
                yield name, fit(name, value, again)


def _was_done(stored: list[pa.RecordBatch], task: Task) -> bool:
    """Whether the row has a result. Rows recorded as errors are not run again: one may have killed a worker."""
    return any(stored[0].column(name)[0].is_valid for name in task.output.names if name != WINDOW)
