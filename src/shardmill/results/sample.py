"""Compute some rows of a result again from the source and compare them with what is stored."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.errors import ShardmillError
from shardmill.core.ranges import split_evenly
from shardmill.ledger import Commit, Ledger
from shardmill.models.golden import lowest_cosine
from shardmill.plan import Plan, Shard
from shardmill.plugins import find_verb
from shardmill.results.report import Check
from shardmill.results.windows import count_items, has_items, has_windows, item_numbers
from shardmill.sinks.parquet import is_vector, read_part
from shardmill.sources import Fields, ItemBatch, open_source
from shardmill.tasks import open_here, open_task
from shardmill.tasks.base import WINDOW, Prepared, Task, number_items

_SAMPLE_SHARDS = 8

_IF_IT_DRAWS = '; if its rows differ each time, it says so: @shardmill.task(agreement="none")'


def check_sample(ledger: Ledger, plan: Plan, commits: dict[int, Commit], sample: int) -> Check:
    """Compute some rows again from the source, in float32, and compare them with what is stored."""
    compared: set[str] = set()
    differ: set[str] = set()
    left_out: set[str] = set()
    worst = 1.0
    if plan.work.query and not plan.work.id:
        return Check("sample", True, "none: without --id the rows of a query cannot be found again")
    mostly = False
    try:
        task = open_task(plan.work.task, plan.work.params)
        if all(task.agreement(commit.precision) == "none" for commit in commits.values()):
            return Check("sample", True, "none: the task's rows differ each time they are made")
        device = open_here(task, precise=True)
        for shard, row, name, fit in _compare(ledger, plan, task, commits, sample, left_out):
            where = f"shard {shard} row {row}"
            compared.add(where)
            own = name in task.output.names
            agreement = task.agreement(commits[shard].precision)
            mostly |= own and agreement == "mostly"
            if fit >= (lowest_cosine(commits[shard].precision) if own and agreement == "close" else 1.0):
                worst = min(worst, fit)
            elif plan.work.query or (own and agreement == "mostly"):
                differ.add(where)
            else:
                may_draw = own or name not in plan.kept
                said = _IF_IT_DRAWS if may_draw and find_verb(plan.work.task).runs_code else f" ({fit:.6f})"
                return Check("sample", False, f"{where}: {name} does not match the source{said}")
    except (ShardmillError, FileNotFoundError) as error:
        return Check("sample", False, str(error).partition("\n")[0])
    except Exception as error:
        if not find_verb(plan.work.task).runs_code:
            raise
        return Check("sample", False, f"the task fails when rows are computed again: {type(error).__name__}: {error}")
    done = len(compared - left_out - differ)
    seen = f"{done} rows computed again in float32 on {device.name}"
    seen += f", worst cosine {worst:.6f}" if any(is_vector(f.type) for f in task.output) else " are equal"
    if mostly and differ:
        seen += f", {len(differ)} differ"
    elif differ:
        # Such a row may have changed in the database since; if more than half differ, the check fails.
        seen += f"; {len(differ)} of {len(compared)} are gone or differ now"
    if left_out:
        seen += f"; {len(left_out)} not compared: too many windows"
    return Check("sample", 2 * len(differ) <= len(compared), seen)


def _compare(
    ledger: Ledger, plan: Plan, task: Task, commits: dict[int, Commit], sample: int, left_out: set[str]
) -> Iterator[tuple[int, int, str, float]]:
    """Which shard, row and column, and how well the stored value matches the source, row by row: 1 is the same.

    A row with more windows than are left of the sample is not computed but added to `left_out`.
    """
    windows_left = sample
    work = plan.work
    source = open_source(plan.stat, Fields.of(work), work.max_item_bytes)
    for shard, picked in _choose_rows(plan, commits, sample):
        stored = _pick(read_part(ledger.store, commits[shard.index]), picked, plan)
        missing = set(picked)
        items = source.read(shard)
        found = _find_items(items, stored, work.id) if work.query else _pick_items(items, picked)
        for texts, kept, rows in found:
            for name in plan.kept:
                for row, value in zip(rows, kept.column(name), strict=True):
                    if task.rows_vary and row not in stored:
                        continue
                    fits = [_fit(each, value) for each in stored[row].column(name)] if row in stored else [0.0]
                    yield shard.index, row, name, min(fits)
            for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
                if row not in stored and not task.rows_vary:
                    yield shard.index, row, "the row", 0.0
                elif task.agreement(commits[shard.index].precision) == "none":
                    continue
                elif text is not None and (row not in stored or _was_done(stored[row], task)):
                    fields = kept.select(list(task.fields)).slice(i, 1) if task.fields else None
                    if task.numbers_items:
                        fields = number_items(fields, shard.index, row, 1)
                    prepared = task.prepare([text]) if fields is None else task.prepare([text], fields)
                    if task.rows_vary:
                        for name, fit in _compute_all(task, prepared, stored.get(row)):
                            yield shard.index, row, name, fit
                        continue
                    if WINDOW not in task.output.names and len(prepared.inputs) > 1:
                        if len(prepared.inputs) > windows_left:
                            left_out.add(f"shard {shard.index} row {row}")
                            continue
                        windows_left -= len(prepared.inputs)
                    for name, fit in _compute_again(task, prepared, stored[row]):
                        yield shard.index, row, name, fit
            missing -= set(rows)
        if task.rows_vary and work.query:
            missing &= set(stored)
        for row in sorted(missing):
            yield shard.index, row, "the row", 0.0


def _compute_again(task: Task, prepared: Prepared, stored: pa.Table) -> Iterator[tuple[str, float]]:
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
            yield name, _fit(stored.column(name)[row], again)


def _compute_all(task: Task, prepared: Prepared, stored: pa.Table | None) -> Iterator[tuple[str, float]]:
    """How well the stored rows of one item, perhaps none, match what its input gives."""
    made = task.run(prepared.inputs).rows
    same = made.num_rows == (stored.num_rows if stored is not None else 0)
    yield "the number of rows", float(same)
    if same and stored is not None:
        for name in made.schema.names:
            for again, value in zip(made.column(name), stored.column(name), strict=True):
                yield name, _fit(value, again)


def _was_done(stored: pa.Table, task: Task) -> bool:
    """Whether the row has a result. Rows recorded as errors are not run again: one may have killed a worker."""
    return any(stored.column(name)[0].is_valid for name in task.output.names if name != WINDOW)


def _choose_rows(plan: Plan, commits: dict[int, Commit], sample: int) -> Iterator[tuple[Shard, list[int]]]:
    choose = random.SystemRandom()
    shards = choose.sample(plan.shards, min(_SAMPLE_SHARDS, len(plan.shards)))
    for shard, (start, stop) in zip(shards, split_evenly(0, sample, len(shards)), strict=True):
        rows = commits[shard.index].rows
        yield shard, sorted(choose.sample(range(rows), min(stop - start, rows)))


def _pick(batches: Iterator[pa.RecordBatch], rows: list[int], plan: Plan) -> dict[int, pa.Table]:
    """The rows of each of these items."""
    found: dict[int, list[pa.RecordBatch]] = {}
    first = 0
    for batch in batches:
        items = np.arange(first, first + batch.num_rows)
        if has_items(plan, batch.schema):
            items = item_numbers(batch)
        elif has_windows(plan, batch.schema):
            items = count_items(batch.column(WINDOW), first)
        for row in rows:
            start, stop = np.searchsorted(items, [row, row + 1])
            if start < stop:
                found.setdefault(row, []).append(batch.slice(start, stop - start))
        first = int(items[-1]) + 1 if len(items) else first
    return {row: pa.Table.from_batches(parts) for row, parts in found.items()}


def _pick_items(
    batches: Iterator[ItemBatch], rows: list[int]
) -> Iterator[tuple[list[str | None], pa.RecordBatch, list[int]]]:
    first = 0
    for batch in batches:
        own = [row for row in rows if first <= row < first + len(batch)]
        if own:
            where = pa.array([row - first for row in own])
            yield batch.texts.take(where).to_pylist(), batch.kept.take(where), own
        first += len(batch)


def _find_items(
    batches: Iterator[ItemBatch], stored: dict[int, pa.Table], names: Sequence[str]
) -> Iterator[tuple[list[str | None], pa.RecordBatch, list[int]]]:
    """Find the same rows by their ids, in a source whose rows may have changed since."""
    wanted = {tuple(values.column(n)[0].as_py() for n in names): row for row, values in stored.items()}
    for batch in batches:
        ids = zip(*(batch.kept.column(n).to_pylist() for n in names), strict=True)
        own = {wanted[value]: i for i, value in enumerate(ids) if value in wanted}
        if own:
            where = pa.array(own.values())
            yield batch.texts.take(where).to_pylist(), batch.kept.take(where), list(own)


def _fit(stored: Any, again: Any) -> float:
    """1 if equal; the cosine for vectors; 0 if one is missing or anything else differs."""
    if not stored.is_valid or not again.is_valid:
        return float(stored.is_valid == again.is_valid)
    if not is_vector(stored.type):
        return float(stored.equals(again) or repr(stored.as_py()) == repr(again.as_py()))
    a = np.asarray(stored.values.to_numpy(zero_copy_only=False), np.float64)
    b = np.asarray(again.values.to_numpy(zero_copy_only=False), np.float64)
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    if scale == 0.0:
        return float(np.array_equal(a, b))
    return float(a @ b) / scale
