"""The proof that the result is what the plan promised: every item once, complete and correct."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.console import Bar
from shardmill.errors import ShardmillError
from shardmill.ledger import Commit, Ledger
from shardmill.plan import NEW_NUMERICS, NUMERICS, Plan, new_numerics
from shardmill.results.merge import schema_of
from shardmill.results.report import Check, Expected, Report
from shardmill.results.sample import check_sample
from shardmill.results.windows import WindowCheck, first_rows, has_windows
from shardmill.sinks.parquet import is_vector, read_part, vectors
from shardmill.sources import Fields, count_lines, count_rows, kept_schema
from shardmill.store import Store
from shardmill.tasks import open_task
from shardmill.tasks.base import WINDOW

__all__ = ["Check", "Expected", "Report", "digest", "verify"]

_READ_BYTES = 4 << 20
_UNIT_SLACK = 5e-3


@dataclass(slots=True)
class _Seen:
    """Totals from one pass over the parts."""

    rows: int = 0
    items: int | None = None
    wrong_windows: int = 0
    nulls: int = 0
    not_finite: int = 0
    wrong_digest: int = 0
    wrong_rows: int = 0
    least_norm: float = float("inf")
    most_norm: float = 0.0
    dims: frozenset[int] = frozenset()
    vector_bytes: int = 0
    unreadable: str = ""
    sound: tuple[Commit, ...] = ()


def verify(
    ledger: Ledger, plan: Plan, *, sample: int = 64, expected: Expected | None = None, quiet: bool = False
) -> Report:
    """Check a run against its plan, its source and what is expected; `sample` rows are computed again in float32."""
    began = time.monotonic()
    expected = expected or Expected()
    checks: list[Check] = []
    commits = ledger.commits.read()
    checks.append(_check_commits(plan, commits))
    whole = checks[-1].ok
    checks += _check_numerics(ledger, plan)
    if plan.work.to is not None:
        return _verify_table(ledger, plan, commits, checks, expected, began)
    with Bar("verifying", quiet=quiet) as bar:
        seen, hashes = _read_parts(ledger, plan, [commits[i] for i in sorted(commits)], bar)
        checks += _check_parts(seen, commits, plan)
        checks += expected.check(seen.rows, seen.dims)
        checks.append(_check_errors(ledger, commits))
        checks.append(_check_ids(ledger, plan, seen.sound, hashes))
        if whole:
            checks.append(_check_items(plan, commits))
        if whole and sample and len(seen.sound) == len(plan.shards):
            bar.at(1.0, f"computing {sample} rows again")
            checks.append(check_sample(ledger, plan, commits, sample))
    report = Report(
        run=ledger.url,
        plan=plan.id,
        verified=all(c.ok for c in checks),
        rows=seen.rows,
        errors=sum(c.errors for c in commits.values()),
        checks=tuple(checks),
        seconds=round(time.monotonic() - began, 2),
    )
    ledger.notes.put_report(report.to_json())
    return report


def _verify_table(
    ledger: Ledger,
    plan: Plan,
    commits: dict[int, Commit],
    checks: list[Check],
    expected: Expected,
    began: float,
) -> Report:
    """Verify a load: compare its commits with the batch ledger, and the ledger with the table's rows."""
    from shardmill.sinks.table import check_table

    whole = checks[0].ok
    output = open_task(plan.work.task, plan.work.params).output
    schema = pa.schema([*kept_schema(plan.stat), *output])
    try:
        checks += [Check(*found) for found in check_table(plan, schema, commits)]
    except ShardmillError as error:
        checks.append(Check("table", False, error.message))
    rows = sum(c.rows for c in commits.values())
    checks += expected.check(rows, {f.type.list_size for f in output if is_vector(f.type)})
    checks.append(_check_errors(ledger, commits))
    if whole:
        checks.append(_check_items(plan, commits))
    report = Report(
        run=ledger.url,
        plan=plan.id,
        verified=all(c.ok for c in checks),
        rows=rows,
        errors=sum(c.errors for c in commits.values()),
        checks=tuple(checks),
        seconds=round(time.monotonic() - began, 2),
    )
    ledger.notes.put_report(report.to_json())
    return report


def _check_commits(plan: Plan, commits: dict[int, Commit]) -> Check:
    missing = [s.index for s in plan.shards if s.index not in commits]
    strange = [i for i in commits if i >= len(plan.shards)]
    foreign = [c.shard for c in commits.values() if c.plan != plan.id or c.generation != plan.generation]
    seen = f"{len(plan.shards) - len(missing)} of {len(plan.shards)} shards committed"
    if missing:
        seen += f"; missing {_few(missing)}"
    if strange or foreign:
        seen += f"; from another plan {_few(strange + foreign)}"
    return Check("commits", not (missing or strange or foreign), seen)


def _check_numerics(ledger: Ledger, plan: Plan) -> Iterator[Check]:
    """Say if an earlier version began the run, whose packed kernel computed this model differently."""
    try:
        here = open_task(plan.work.task, plan.work.params).fingerprint()
    except (ShardmillError, OSError):
        return  # The check of the sample says that the model is missing.
    if not new_numerics(plan.fingerprint, here):
        return
    kernels = [note for worker in ledger.workers.read() for note in worker["notes"]]
    packed = not kernels or any("packed" in note for note in kernels)
    remedy = "run it again with --fresh" if packed else "none of its workers used the kernel that was corrected"
    yield Check(NUMERICS, not packed, f"{NEW_NUMERICS}: {remedy}")


def _read_parts(ledger: Ledger, plan: Plan, commits: list[Commit], bar: Bar) -> tuple[_Seen, list[NDArray[np.uint64]]]:
    seen = _Seen()
    hashes: list[NDArray[np.uint64]] = []
    total = sum(c.rows_in_part for c in commits)
    for commit in commits:
        try:
            if digest(ledger.store, commit.part) != commit.digest:
                seen.wrong_digest += 1
                continue
            rows, windows = 0, WindowCheck()
            for batch in read_part(ledger.store, commit.part):
                rows += batch.num_rows
                _look_at(batch, seen)
                if by_window := has_windows(plan, batch.schema):
                    windows.add(batch)
                if plan.work.id:
                    items = first_rows(batch) if by_window else batch
                    hashes.append(_hash_ids(items.select(list(plan.work.id))))
                bar.count(seen.rows + rows, total, "rows")
            seen.wrong_rows += rows != commit.rows_in_part
            seen.rows += rows
            if windows.items:
                seen.items = (seen.items or 0) + windows.items
                seen.wrong_windows += windows.wrong + abs(windows.items - commit.rows)
            seen.sound += (commit,)
        except (OSError, ValueError, pa.ArrowException, ShardmillError) as error:
            seen.unreadable = f"{commit.part}: {type(error).__name__}"
    return seen, hashes


def _look_at(batch: pa.RecordBatch, seen: _Seen) -> None:
    for field in batch.schema:
        if not is_vector(field.type):
            continue
        column = batch.column(field.name)
        seen.nulls += column.null_count
        seen.dims |= {field.type.list_size}
        present = column.drop_null()
        seen.vector_bytes += len(present) * field.type.list_size * field.type.value_type.bit_width // 8
        matrix = vectors(present).astype(np.float32)
        norms = np.linalg.norm(matrix, axis=1)
        finite = np.isfinite(norms)
        seen.not_finite += int((~finite).sum())
        if finite.any():
            seen.least_norm = min(seen.least_norm, float(norms[finite].min()))
            seen.most_norm = max(seen.most_norm, float(norms[finite].max()))


def _check_parts(seen: _Seen, commits: dict[int, Commit], plan: Plan) -> Iterator[Check]:
    counted = sum(c.rows_in_part for c in commits.values())
    if seen.unreadable:
        yield Check("parts", False, f"cannot be read: {seen.unreadable}")
    yield Check("digests", not seen.wrong_digest, _amount(seen.wrong_digest, "part", "with a wrong digest"))
    yield Check("rows", seen.rows == counted and not seen.wrong_rows, f"{seen.rows:,} rows, {counted:,} committed")
    size = sum(c.part_bytes for c in seen.sound)
    of_vectors = f", {seen.vector_bytes:,} of them vectors" if seen.dims else ""
    yield Check("size", size >= seen.vector_bytes, f"{size:,} bytes in {len(seen.sound):,} parts{of_vectors}")
    if seen.items is not None:
        wrong = _amount(seen.wrong_windows, "window", "missing or out of place")
        yield Check("windows", not seen.wrong_windows, f"{seen.items:,} items have them, {wrong}")
    if not seen.dims:
        return
    errors = sum(c.errors for c in commits.values())
    yield Check("vectors", seen.nulls == errors, f"{seen.nulls:,} rows without one, {errors:,} errors on record")
    yield Check("dimension", len(seen.dims) == 1, f"{', '.join(map(str, sorted(seen.dims)))} dimensions")
    yield Check("finite", not seen.not_finite, _amount(seen.not_finite, "vector", "with NaN or infinity"))
    if seen.least_norm != float("inf"):
        unit = open_task(plan.work.task, plan.work.params).unit_norm
        held = 1 - _UNIT_SLACK <= seen.least_norm <= seen.most_norm <= 1 + _UNIT_SLACK if unit else seen.least_norm > 0
        yield Check("norms", held, f"{seen.least_norm:.4f} to {seen.most_norm:.4f}")


def _check_errors(ledger: Ledger, commits: dict[int, Commit]) -> Check:
    """Every failed row has its record."""
    counted = sum(c.errors for c in commits.values())
    try:
        found = sum(sum(1 for _ in ledger.errors.read(c)) for c in commits.values())
    except (FileNotFoundError, ValueError, ShardmillError) as error:
        return Check("errors", False, f"the records cannot be read: {type(error).__name__}")
    return Check("errors", found == counted, f"{found:,} records of {counted:,} failed rows")


def _hash_ids(ids: pa.RecordBatch) -> NDArray[np.uint64]:
    rows = zip(*(column.to_pylist() for column in ids.columns), strict=True)
    return np.fromiter((_hash_id(row) for row in rows), np.uint64, ids.num_rows)


def _hash_id(row: tuple[Any, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=8).digest(), "little")


def _check_ids(ledger: Ledger, plan: Plan, commits: Sequence[Commit], hashes: list[NDArray[np.uint64]]) -> Check:
    """Compare ids by hashes of eight bytes; only ids whose hash occurs twice are compared in full."""
    if not plan.work.id:
        return Check("ids", True, "the row numbers of the source")
    every = np.sort(np.concatenate(hashes)) if hashes else np.zeros(0, np.uint64)
    twice = set(every[1:][every[1:] == every[:-1]].tolist())
    if not twice:
        return Check("ids", True, f"{len(every):,} ids, each once")
    names = list(plan.work.id)
    first: dict[tuple[Any, ...], int] = {}
    again: dict[tuple[Any, ...], int] = {}
    row = 0
    for commit in commits:
        for batch in _read_ids(ledger, plan, commit):
            for value in zip(*(batch.column(n).to_pylist() for n in names), strict=True):
                if _hash_id(value) in twice and any(v is not None for v in value):
                    if value in first:
                        again.setdefault(value, row)
                    first.setdefault(value, row)
                row += 1
    if not again:
        return Check("ids", True, f"{len(every):,} ids, each once")
    value, where = next(iter(again.items()))
    example = ", ".join(str(v) for v in value)
    seen = f"{len(again):,} ids occur more than once, e.g. {example} in rows {first[value]:,} and {where:,}"
    return Check("ids", False, f"{seen}; all rows are kept: give --id more fields, or none")


def _read_ids(ledger: Ledger, plan: Plan, commit: Commit) -> Iterator[pa.RecordBatch]:
    """The id columns of each item of a part, once."""
    names = list(plan.work.id)
    windows = has_windows(plan, schema_of(ledger, commit))
    for batch in read_part(ledger.store, commit.part, [*names, WINDOW] if windows else names):
        yield first_rows(batch).select(names) if windows else batch


def _check_items(plan: Plan, commits: dict[int, Commit]) -> Check:
    """Count the source again, by other means than reading it item by item."""
    if plan.work.query:
        return _check_query(plan, sum(commits[s.index].lines for s in plan.shards))
    counts: dict[int, int] = {}
    for shard in plan.shards:
        counts[shard.file] = counts.get(shard.file, 0) + commits[shard.index].lines
    try:
        for index, file in enumerate(plan.stat.files):
            there = count_lines(plan.stat, file)
            if there is None:
                seen = f"{sum(counts.values()):,} lines were read; a remote source is not counted again"
                return Check("source", True, seen)
            if there != counts.get(index, 0):
                return Check("source", False, f"{file.name} has {there:,} lines, {counts.get(index, 0):,} were read")
    except (ShardmillError, FileNotFoundError) as error:
        return Check("source", False, str(error).partition("\n")[0])
    return Check("source", True, f"all {sum(counts.values()):,} lines of {len(plan.stat.files)} files were read")


def _check_query(plan: Plan, read: int) -> Check:
    """A database keeps changing: a different count is reported, but is not a fault."""
    try:
        there = count_rows(plan.stat, Fields.of(plan.work), plan.shards)
    except ShardmillError as error:
        return Check("source", False, str(error).partition("\n")[0])
    if there == read:
        return Check("source", True, f"all {read:,} rows of the query were read")
    return Check("source", True, f"{read:,} rows were read; the query gives {there:,} in that range now")


def digest(store: Store, key: str) -> str:
    total = hashlib.sha256()
    with store.reader(key) as file:
        while block := file.read(_READ_BYTES):
            total.update(block)
    return total.hexdigest()


def _amount(count: int, noun: str, what: str) -> str:
    return f"no {noun} {what}" if not count else f"{count:,} {noun}{'s' * (count > 1)} {what}"


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
