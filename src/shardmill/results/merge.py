"""The result of a run in source order, in constant memory: read, and written as files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import IO

import numpy as np
import pyarrow as pa

from shardmill.core.errors import CorruptState, UsageError
from shardmill.ledger import Commit, Ledger
from shardmill.plan import ITEM, ROW, Plan
from shardmill.plugins import load_part
from shardmill.results.files.chosen import Chosen, Merged, OpenRows, Result, choose
from shardmill.results.files.folder import write_folder
from shardmill.results.files.kinds import BY_SUFFIX, find_suffix
from shardmill.results.files.npy import write_matrix
from shardmill.results.files.packed import packing
from shardmill.results.files.pipe import PIPE, open_stdout
from shardmill.results.vectors import StoredVectors
from shardmill.results.windows import count_items, has_items, has_windows, item_numbers
from shardmill.sinks.parquet import read_part, read_schema
from shardmill.store import LocalStore, locate, replacing
from shardmill.tasks.base import WINDOW


def read_rows(ledger: Ledger, plan: Plan, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The whole result in source order, each row with the number of its item in the source as `row`."""
    refuse_table(plan)
    row = 0
    stored = schema_of(ledger, ledger.commits.read_complete(plan)[0])
    windows, numbered = has_windows(plan, stored), has_items(plan, stored)
    mark = [ITEM] if numbered else [WINDOW] if windows else []
    columns = [name for name in stored.names if name != ITEM] if numbered and columns is None else columns
    read = columns if columns is None else list(dict.fromkeys([*columns, *mark]))
    done = 0
    for commit in ledger.commits.read_complete(plan):
        row, done = done if numbered else row, done + commit.rows
        for batch in read_part(ledger.store, commit, read):
            if numbered:
                numbers = item_numbers(batch) + row
                batch = batch.select(columns)
            elif windows:
                numbers = count_items(batch.column(WINDOW), row)
                batch = batch if columns is None else batch.select(columns)
            else:
                numbers = np.arange(row, row + batch.num_rows)
            row = row if numbered else int(numbers[-1]) + 1 if len(numbers) else row
            schema = pa.schema([pa.field(ROW, pa.int64()), *batch.schema])
            yield pa.RecordBatch.from_arrays([pa.array(numbers), *batch.columns], schema=schema)


def refuse_table(plan: Plan) -> None:
    if (to := plan.work.to) is not None:
        raise UsageError(
            f"The result of this run is in the table {to.table} of {to.url}.",
            hint="Search the table: shardmill search URL",
        )


def part_schema(ledger: Ledger, plan: Plan) -> pa.Schema:
    """The columns of the result as stored, without the number of an item in its shard."""
    refuse_table(plan)
    commits = ledger.commits.read_complete(plan)
    if not commits:
        raise CorruptState("plan.json is damaged: it has no shards.")
    found = schema_of(ledger, commits[0])
    return found.remove(found.get_field_index(ITEM)) if has_items(plan, found) else found


def digest_of(commits: Sequence[Commit]) -> str:
    """What names the content of a result, for files that are made from it."""
    return hashlib.sha256("".join(commit.digest for commit in commits).encode()).hexdigest()[:16]


def schema_of(ledger: Ledger, commit: Commit) -> pa.Schema:
    return read_schema(ledger.store, commit)


def stored_vectors(ledger: Ledger, plan: Plan) -> StoredVectors:
    """The vectors that the task made."""
    if (found := StoredVectors.find(part_schema(ledger, plan), plan.kept)) is not None:
        return found
    raise UsageError("This run has no vector column.")


def merge(
    ledger: Ledger,
    plan: Plan,
    out: str,
    *,
    format: str = "",
    where: str = "",
    columns: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    rows_per_file: int | None = None,
    partition_by: str = "",
    quiet: bool = False,
) -> Merged:
    """Write the result, or chosen rows and columns of it, in the format that the name of `out` says.

    `out` is a path, a URL, or "-" for standard output, which gets lines of JSON unless there is a `format`. With
    `rows_per_file` or `partition_by` it is a folder of such files.
    """
    out = out.rstrip("/") or out
    kind, compress = BY_SUFFIX[suffix := find_suffix(out, format or ("jsonl" if out == PIPE else ""))]
    in_folder = rows_per_file is not None or bool(partition_by)
    if rows_per_file is not None and rows_per_file < 1:
        raise UsageError(f"--rows-per-file must be at least 1 (got {rows_per_file}).")
    _refuse_combination(suffix, out, in_folder)
    if out != PIPE:
        _refuse_place(ledger, out, is_folder=in_folder or kind.folder)
    chosen = choose(_result(ledger, plan), where=where, columns=columns, rename=rename)
    if kind.chosen:
        part: Merged = load_part(kind.chosen)(chosen, out, quiet=quiet)
        return part
    open_rows = packing(load_part(kind.piped if out == PIPE and kind.piped else kind.rows), compress)
    if in_folder:
        return write_folder(chosen, out, open_rows, suffix, rows_per_file, partition_by, quiet=quiet)
    if out == PIPE:
        pipe = open_stdout()
        rows = _write_rows(chosen, pipe, open_rows, quiet)
        pipe.flush()
        return Merged((out,), rows, pipe.tell())
    with replacing(out) as file:
        rows = _write_rows(chosen, file, open_rows, quiet)
    return Merged.of((out,), rows)


def _write_rows(chosen: Chosen, file: IO[bytes], open_rows: OpenRows, quiet: bool) -> int:
    rows = 0
    with open_rows(file, chosen.schema) as write:
        for batch in chosen.read("merging", quiet=quiet):
            write(batch)
            rows += batch.num_rows
    return rows


def _result(ledger: Ledger, plan: Plan) -> Result:
    rows = sum(commit.rows_in_part for commit in ledger.commits.read_complete(plan))
    return Result(part_schema(ledger, plan), rows, tuple(plan.kept), partial(read_rows, ledger, plan))


def _refuse_combination(suffix: str, out: str, in_folder: bool) -> None:
    """Refuse what a format cannot do, before anything is read."""
    kind = BY_SUFFIX[suffix][0]
    if out == PIPE and (in_folder or not kind.rows):
        what = f"A {suffix} file" if not in_folder else "A folder of files"
        raise UsageError(f"{what} cannot be written to a pipe.", hint="Name a place with --out.")
    if in_folder and not kind.rows:
        raise UsageError(
            f"--rows-per-file and --partition-by write no {suffix} files.",
            hint="Choose .parquet, .jsonl, .csv or .arrow.",
        )


def _refuse_place(ledger: Ledger, out: str, *, is_folder: bool) -> None:
    """Refuse a file that is a folder, or is among the run's records, where it would be swept or taken for one."""
    store, key = locate(f"{out}/file" if is_folder else out)
    run, place = ledger.url, f"{store.url}/{key}"
    if isinstance(store, LocalStore):
        run, place = os.path.realpath(run), os.path.realpath(place)
    if ledger.is_own(place.removeprefix(f"{run}/")):
        raise UsageError(f"{out} is among the run's own files.", hint="Choose another folder with --out.")
    if not is_folder and isinstance(store, LocalStore) and store.path(key).is_dir():
        raise UsageError(f"{out} is a folder.", hint="Name a file in it with --out.")


def write_vectors(ledger: Ledger, plan: Plan, out: str, *, quiet: bool = False) -> int:
    """Write all vectors as one `.npy`, with NaN for missing ones."""
    vector = choose(_result(ledger, plan)).only([stored_vectors(ledger, plan).name])
    with replacing(out) as file:
        return write_matrix(vector, file, quiet=quiet)
