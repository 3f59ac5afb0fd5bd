"""The proof that the result is what the plan promised: every item once, complete and correct."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from shardmill.core import permission
from shardmill.core.console import Bar
from shardmill.core.errors import CorruptState, ShardmillError, StoreError
from shardmill.core.pool import in_order
from shardmill.ledger import MODEL, Commit, Editions, Ledger
from shardmill.plan import NEW_NUMERICS, NUMERICS, Plan, SourceFile, new_numerics
from shardmill.plugins import check_packages
from shardmill.results.bad import BadRow
from shardmill.results.delivered import check_delivery
from shardmill.results.delivery import deliveries_of
from shardmill.results.drawn import SAMPLE, sample_size
from shardmill.results.dropped import DroppedItems
from shardmill.results.ids import IdHashes, check_ids
from shardmill.results.items import ItemsCheck
from shardmill.results.parts import UNIT_SLACK, ReadPart, digest, read_errors
from shardmill.results.reading import FullRead
from shardmill.results.receipt import check_receipt
from shardmill.results.report import Check, Expected, Report
from shardmill.results.sample import check_sample
from shardmill.results.seen import SeenInParts
from shardmill.sinks.address import find_table
from shardmill.sinks.parquet import is_vector, read_part
from shardmill.sources import Fields, count_lines, count_rows, kept_schema
from shardmill.tasks import open_task

__all__ = ["Check", "Expected", "Report", "digest", "save_report", "verify"]


def verify(
    ledger: Ledger,
    plan: Plan,
    *,
    sample: int | str = SAMPLE,
    source: bool = True,
    expected: Expected | None = None,
    to: Sequence[str] = (),
    quiet: bool = False,
) -> Report:
    """Check a run against its plan, its source and what is expected; `sample` rows are computed again in float32.

    Without `source`, the whole source is not read again. Stores that it was delivered to, and those that `to` names,
    are compared with it. Of an edition that another one has replaced, the source is gone: its digests alone are
    compared. Nothing is written into the run's folder but, now and then,
    how far a long sample is.
    """
    try:
        report = _verify(ledger, plan, sample, source, expected or Expected(), to, quiet)
    except (ShardmillError, FileNotFoundError) as error:
        _refuse_vanished(ledger, error)
        raise
    if not report.verified:
        _refuse_vanished(ledger)
    return report


def save_report(ledger: Ledger, report: Report) -> str:
    """Keep a report in the run's folder; if that cannot be written, returns why."""
    try:
        ledger.notes.put_report(report.to_json())
    except StoreError as error:
        return f"The report is not kept: {error.message}"
    return ""


def _refuse_vanished(ledger: Ledger, error: Exception | None = None) -> None:
    with contextlib.suppress(StoreError):
        if ledger.find_plan() is None:
            raise CorruptState(
                f"{ledger.url} is gone: it was there when its verification began.",
                hint="Find out who moved or deleted it, and verify it where it is now.",
            ) from error


def _verify(
    ledger: Ledger, plan: Plan, sample: int | str, source: bool, expected: Expected, to: Sequence[str], quiet: bool
) -> Report:
    # What a server answered is not asked for again.
    permission.check(plan.code, sends_keys=False)
    check_packages(plan.packages)
    began = time.monotonic()
    sample_size(sample, 0)
    older = _tell_older(ledger)
    source, without = source and not older, older or ("" if source else "--no-source")
    checks: list[Check] = []
    commits = ledger.commits.read()
    checks.append(_check_commits(plan, commits))
    whole = checks[-1].ok
    checks += _check_numerics(ledger, plan)
    if plan.work.to is not None:
        return _verify_table(ledger, plan, commits, checks, expected, began, source=source, quiet=quiet)
    dropped = DroppedItems()
    with (
        FullRead(ledger, plan, commits, source=source and whole) as reading,
        Bar("verifying", quiet=quiet) as bar,
        IdHashes() as hashes,
    ):
        if whole and source and not quiet:
            reading.announce()
        exact = ItemsCheck(ledger, plan, reading.items(bar), without=without) if whole else None
        seen = _read_parts(reading.parts(), commits, hashes, dropped, exact, bar)
        checks += _check_parts(seen, commits, plan)
        checks += expected.check(seen.rows, seen.dims)
        checks.append(_check_errors(commits, seen.errors, seen.unreadable_errors))
        checks.append(check_ids(ledger, plan, seen, hashes))
        checks += _check_published(ledger)
        sound = whole and len(seen.sound) == len(plan.shards)
        if sound and (name := open_task(plan.work.task, plan.work.params).dropped_file):
            checks.append(dropped.check(ledger.store, name))
        checks += check_receipt(ledger, plan, commits)
        for address in dict.fromkeys([*deliveries_of(ledger.execution()), *to]) if whole and not older else ():
            checks.append(check_delivery(ledger, plan, address, commits))
        if exact is not None:
            checks += [_check_items(plan, commits)] if source else []
            checks += exact.checks()
        figures = _measure(ledger, plan, commits) if sound else {}
    if older:
        checks.append(Check("sample", True, f"none: {older}"))
    elif sound and sample_size(sample, 100):
        check, costs = check_sample(ledger, plan, commits, sample, quiet=quiet)
        checks.append(check)
        figures = {**figures, **costs}
    return Report(
        run=ledger.url,
        plan=plan.id,
        verified=all(c.ok for c in checks),
        rows=seen.rows,
        errors=sum(c.errors for c in commits.values()),
        checks=tuple(checks),
        seconds=round(time.monotonic() - began, 2),
        figures=figures,
    )


def _tell_older(ledger: Ledger) -> str:
    """Of an edition that another one has replaced: why only its digests are compared; else empty."""
    editions = Editions(ledger.url)
    number, current = editions.number_of(ledger.url), editions.current()
    if number == current or not editions.is_read(number):
        return ""
    return f"edition {current} has replaced this one, whose source is gone; digests are compared"


def _measure(ledger: Ledger, plan: Plan, commits: dict[int, Commit]) -> dict[str, Any]:
    """The task's own figures of the whole result."""
    task = open_task(plan.work.task, plan.work.params)
    return task.measure(
        batch.select(task.output.names)
        for shard in plan.shards
        for batch in read_part(ledger.store, commits[shard.index])
    )


def _verify_table(
    ledger: Ledger,
    plan: Plan,
    commits: dict[int, Commit],
    checks: list[Check],
    expected: Expected,
    began: float,
    *,
    source: bool,
    quiet: bool,
) -> Report:
    """Verify a load: compare its commits with the batch ledger, and the ledger with the table's rows."""
    whole, figures = checks[0].ok, {}
    task = open_task(plan.work.task, plan.work.params)
    output = task.output
    schema = pa.schema([*kept_schema(plan), *task.written])
    try:
        table = find_table(plan.work)
        checks += [Check(*found) for found in table.check_table(plan, schema, commits)]
        silent = table.count_without_result(plan, schema)
        has_vectors = any(is_vector(f.type) for f in output)
        what = "vectors" if has_vectors else "results"
        checks.append(_check_silent(what, f"{silent:,} rows were loaded without one", silent, plan))
        if not has_vectors:
            wrong = next(filter(None, map(task.check_rows, table.read_results(plan, schema))), None)
            checks += [Check("values", False, wrong)] if wrong else []
            figures = task.measure(table.read_results(plan, schema)) if whole else {}
    except ShardmillError as error:
        checks.append(Check("table", False, error.message))
    rows = sum(c.rows for c in commits.values())
    checks += expected.check(rows, {f.type.list_size for f in output if is_vector(f.type)})
    seen = SeenInParts()
    for failed, unreadable in in_order(lambda commit: read_errors(ledger, commit), commits.values()):
        seen.add(SeenInParts(errors=len(failed), unreadable_errors=unreadable))
    checks.append(_check_errors(commits, seen.errors, seen.unreadable_errors))
    checks += check_receipt(ledger, plan, commits)
    if whole:
        checks += [_check_items(plan, commits)] if source else []
        with FullRead(ledger, plan, commits, source=source) as reading, Bar("verifying", quiet=quiet) as bar:
            if source and not quiet:
                reading.announce()
            exact = ItemsCheck(ledger, plan, reading.items(bar), without="" if source else "--no-source")
            for shard in plan.shards:
                exact.add(commits[shard.index], None)
                bar.count(shard.index + 1, len(plan.shards), "shards of the source")
            checks += exact.checks()
    return Report(
        run=ledger.url,
        plan=plan.id,
        verified=all(c.ok for c in checks),
        rows=rows,
        errors=sum(c.errors for c in commits.values()),
        checks=tuple(checks),
        seconds=round(time.monotonic() - began, 2),
        figures=figures,
    )


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


def _read_parts(
    parts: Iterator[ReadPart],
    commits: dict[int, Commit],
    hashes: IdHashes,
    dropped: DroppedItems,
    exact: ItemsCheck | None,
    bar: Bar,
) -> SeenInParts:
    """Add up in shard order what was seen in the parts."""
    seen = SeenInParts()
    total = sum(c.rows_in_part for c in commits.values())
    for part in parts:
        seen.add(part.seen)
        hashes.add(part.ids)
        if part.seen.dropped is not None:
            dropped.add(part.seen.dropped, part.commit.rows)
        if exact is not None:
            exact.add(part.commit, part.rows)
        bar.count(seen.rows, total, "rows")
    return seen


def _check_parts(seen: SeenInParts, commits: dict[int, Commit], plan: Plan) -> Iterator[Check]:
    counted = sum(c.rows_in_part for c in commits.values())
    if seen.unreadable:
        yield Check("parts", False, f"cannot be read: {seen.unreadable}")
    yield Check("digests", not seen.wrong_digest, _amount(seen.wrong_digest, "part", "with a wrong digest"))
    yield Check("rows", seen.rows == counted and not seen.wrong_rows, f"{seen.rows:,} rows, {counted:,} committed")
    size = sum(c.rows_bytes for c in seen.sound)
    of_vectors = f", {seen.vector_bytes:,} of them vectors" if seen.dims else ""
    yield Check("size", size >= seen.vector_bytes, f"{size:,} bytes in {len(seen.sound):,} parts{of_vectors}")
    if seen.unsound:
        yield Check("values", False, seen.unsound)
    if seen.windowed_items or seen.wrong_windows:
        wrong = _amount(seen.wrong_windows, "window", "missing or out of place")
        yield Check("windows", not seen.wrong_windows, f"{seen.windowed_items:,} items have them, {wrong}")
    if plan.work.takes_part or open_task(plan.work.task, plan.work.params).rows_vary:
        yield _check_varying(seen, commits)
    if not seen.dims:
        yield _check_nulls(seen, plan)
        return
    yield _check_missing(seen, commits, plan)
    yield Check("dimension", len(seen.dims) == 1, f"{', '.join(map(str, sorted(seen.dims)))} dimensions")
    wrong = _amount(seen.not_finite, "vector", "with NaN or infinity")
    yield Check("finite", not seen.not_finite, wrong, seen.bad.of("finite"))
    if seen.least_norm != float("inf"):
        unit = open_task(plan.work.task, plan.work.params).unit_norm
        held = 1 - UNIT_SLACK <= seen.least_norm <= seen.most_norm <= 1 + UNIT_SLACK if unit else seen.least_norm > 0
        yield Check("norms", held, f"{seen.least_norm:.4f} to {seen.most_norm:.4f}", seen.bad.of("norms"))


def _check_missing(seen: SeenInParts, commits: dict[int, Commit], plan: Plan) -> Check:
    """A row has no vector if it has an error on record, and only then."""
    errors = sum(c.errors for c in commits.values())
    found = f"{seen.null_rows:,} rows without one, {errors:,} errors on record"
    found += f"; {seen.silent_rows:,} of these rows have no error" if seen.silent_rows else ""
    found += f"; {seen.needless_errors:,} rows have an error and a vector" if seen.needless_errors else ""
    held = not seen.needless_errors and (not seen.silent_rows or _may_be_null(plan))
    return Check("vectors", held, found, () if held else seen.bad.of("vectors"))


def _check_varying(seen: SeenInParts, commits: dict[int, Commit]) -> Check:
    """Items that have no row were counted when their shard was committed, and all others are there, in order."""
    items, dropped = sum(c.rows for c in commits.values()), sum(c.dropped for c in commits.values())
    found = f"{items:,} items: {seen.numbered_items:,} have {seen.rows:,} rows, {dropped:,} were given none"
    wrong = f"; {seen.wrong_items:,} missing or out of place" if seen.wrong_items else ""
    return Check("items", not seen.wrong_items, found + wrong)


def _check_nulls(seen: SeenInParts, plan: Plan) -> Check:
    found = f"{seen.null_rows:,} rows without a result, {seen.silent_rows:,} of them without an error"
    return _check_silent("nulls", found, seen.silent_rows, plan, seen.bad.of("nulls"))


def _check_silent(name: str, found: str, silent: int, plan: Plan, rows: tuple[BadRow, ...] = ()) -> Check:
    """Rows without a result or an error are a fault, unless the task declares them an answer."""
    if not silent:
        return Check(name, True, found)
    if _may_be_null(plan):
        return Check(name, True, f"{found}: the task declares such rows an answer")
    advice = "a task names such rows in Output.bad, or sets null_rows_are_answers (docs/tasks.md)"
    return Check(name, False, f"{found}; {advice}", rows)


def _may_be_null(plan: Plan) -> bool:
    return open_task(plan.work.task, plan.work.params).null_rows_are_answers


def _check_errors(commits: dict[int, Commit], found: int, unreadable: str) -> Check:
    """Every failed row has its record."""
    counted = sum(c.errors for c in commits.values())
    if unreadable:
        return Check("errors", False, f"the records cannot be read: {unreadable}")
    return Check("errors", found == counted, f"{found:,} records of {counted:,} failed rows")


def _check_published(ledger: Ledger) -> Iterator[Check]:
    """What the run left beside its rows is there, as it was left."""
    try:
        files = ledger.published.digests()
        wrong = [key for key, expected in files.items() if _digest_of(ledger, key) != expected]
    except ShardmillError as error:
        yield Check(MODEL, False, error.message)
        return
    if files:
        lost = f"{wrong[0]} is missing or was changed; with --fresh it is made again" if wrong else "as they were made"
        yield Check(MODEL, not wrong, f"{len(files)} files, {lost}")


def _digest_of(ledger: Ledger, key: str) -> str | None:
    try:
        return digest(ledger.store, key)
    except FileNotFoundError:
        return None


def _check_items(plan: Plan, commits: dict[int, Commit]) -> Check:
    """Count the source again, by other means than reading it item by item."""
    if plan.work.query:
        return _check_query(plan, sum(commits[s.index].lines for s in plan.shards))
    if plan.shards[-1].most:
        read = sum(commit.rows for commit in commits.values())
        return Check("source", True, f"{read:,} items were read, up to the last one of --limit {plan.work.limit:,}")
    counts: dict[int, int] = {}
    # Files that share a shard are counted together, under the first.
    firsts = list(range(len(plan.stat.files)))
    for shard in plan.shards:
        counts[shard.file] = counts.get(shard.file, 0) + commits[shard.index].lines
        firsts[shard.file : shard.file + shard.files] = [shard.file] * shard.files
    try:
        for first, group in groupby(zip(firsts, plan.stat.files, strict=True), itemgetter(0)):
            files = [file for _, file in group]
            there = _count_again(plan, files)
            if there is None:
                seen = f"{sum(counts.values()):,} lines were read; a remote source is not counted again"
                return Check("source", True, seen)
            if there != counts.get(first, 0):
                names = files[0].name if len(files) == 1 else f"{files[0].name} to {files[-1].name}"
                return Check("source", False, f"{names}: {there:,} lines, {counts.get(first, 0):,} were read")
    except (ShardmillError, FileNotFoundError) as error:
        return Check("source", False, str(error).partition("\n")[0])
    return Check("source", True, f"all {sum(counts.values()):,} lines of {len(plan.stat.files)} files were read")


def _count_again(plan: Plan, files: Sequence[SourceFile]) -> int | None:
    total = 0
    for file in files:
        there = count_lines(plan.stat, file)
        if there is None:
            return None
        total += there
    return total


def _check_query(plan: Plan, read: int) -> Check:
    """A database keeps changing: a different count is reported, but is not a fault."""
    try:
        there = count_rows(plan.stat, Fields.of(plan.work), plan.shards)
    except ShardmillError as error:
        return Check("source", False, str(error).partition("\n")[0])
    if there == read:
        return Check("source", True, f"all {read:,} rows of the query were read")
    return Check("source", True, f"{read:,} rows were read; the query gives {there:,} in that range now")


def _amount(count: int, noun: str, what: str) -> str:
    return f"no {noun} {what}" if not count else f"{count:,} {noun}{'s' * (count > 1)} {what}"


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
