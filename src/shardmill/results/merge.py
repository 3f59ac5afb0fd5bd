"""Merge parts into one file, in source order, in constant memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa

from shardmill.core.console import Bar
from shardmill.core.errors import CorruptState, ShardmillError, UsageError
from shardmill.ledger import Commit, Ledger
from shardmill.plan import ITEM, ROW, Plan
from shardmill.plugins import load_part
from shardmill.results.windows import count_items, has_items, has_windows, item_numbers
from shardmill.sinks.parquet import fill_missing, is_vector, open_writer, read_part, read_schema, vectors
from shardmill.store import LocalStore, locate, replacing
from shardmill.tasks.base import WINDOW

_ROW_GROUP_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge wrote; of an index, also its kind and recall."""

    files: tuple[str, ...]
    rows: int
    bytes: int
    index: dict[str, Any] | None = None


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


def schema_of(ledger: Ledger, commit: Commit) -> pa.Schema:
    return read_schema(ledger.store, commit)


def vector_field(ledger: Ledger, plan: Plan) -> pa.Field:
    """The vector column that the task made; one that was kept from the source does not count."""
    for field in part_schema(ledger, plan):
        if is_vector(field.type) and field.name not in plan.kept:
            return field
    raise UsageError("This run has no vector column.")


def merge(ledger: Ledger, plan: Plan, out: str, *, quiet: bool = False) -> Merged:
    """Write the result as one `.parquet`, or as `.npy` or `.faiss` with the other columns in `.ids.parquet` beside it.

    A missing vector is written as NaN. Of the two files, `.npy` is the last to take its name: while it exists, the one
    beside it is of the same merge.
    """
    _refuse_inside(ledger, out)
    schema = part_schema(ledger, plan)
    if out.endswith(".parquet"):
        with replacing(out) as file:
            rows = _write_parquet(ledger, plan, file, schema.names, quiet)
        return Merged((out,), rows, _size(out))
    if out.endswith(".npy"):
        others = [name for name in schema.names if name != vector_field(ledger, plan).name]
        beside = out.removesuffix(".npy") + ".ids.parquet"
        with replacing(out) as file, replacing(beside) as ids:
            rows = _write_vectors(ledger, plan, file, quiet)
            _write_parquet(ledger, plan, ids, others, True)
            # Vectors of an earlier merge must not stand beside the new ids.
            store, key = locate(out)
            store.delete(key)
        return Merged((out, beside), rows, _size(out) + _size(beside))
    if out.endswith(".faiss"):
        made: Merged = load_part("shardmill.results.faiss:write_faiss")(ledger, plan, out, quiet=quiet)
        return made
    raise UsageError(f"{out}: the name must end in .parquet, .npy or .faiss.")


def _refuse_inside(ledger: Ledger, out: str) -> None:
    """Refuse a file among the run's records, where it would be swept or taken for one of them."""
    store, key = locate(out)
    run, place = ledger.url, f"{store.url}/{key}"
    if isinstance(store, LocalStore):
        run, place = os.path.realpath(run), os.path.realpath(place)
    if ledger.is_own(place.removeprefix(f"{run}/")):
        raise UsageError(f"{out} is among the run's own files.", hint="Choose another folder with --out.")


def write_vectors(ledger: Ledger, plan: Plan, out: str, *, quiet: bool = False) -> int:
    """Write all vectors as one `.npy`, with NaN for missing ones."""
    with replacing(out) as file:
        return _write_vectors(ledger, plan, file, quiet)


def _write_parquet(ledger: Ledger, plan: Plan, file: IO[bytes], columns: list[str], quiet: bool) -> int:
    total = sum(c.rows_in_part for c in ledger.commits.read_complete(plan))
    schema = part_schema(ledger, plan)
    waiting: list[pa.RecordBatch] = []
    done = held = 0
    named = pa.schema([pa.field(ROW, pa.int64()), *(schema.field(n) for n in columns)])
    with Bar("merging", quiet=quiet) as bar, open_writer(file, named) as writer:
        for batch in read_rows(ledger, plan, columns):
            waiting.append(batch)
            held += batch.num_rows
            done += batch.num_rows
            if held >= _ROW_GROUP_ROWS or done == total:
                writer.write_table(fill_missing(pa.Table.from_batches(waiting)), row_group_size=held)
                waiting, held = [], 0
            bar.count(done, total, "rows")
    _check_count(done, total)
    return done


def _write_vectors(ledger: Ledger, plan: Plan, file: IO[bytes], quiet: bool) -> int:
    field = vector_field(ledger, plan)
    dims, dtype = field.type.list_size, np.dtype(field.type.value_type.to_pandas_dtype())
    total = sum(c.rows_in_part for c in ledger.commits.read_complete(plan))
    done = 0
    with Bar("writing vectors", quiet=quiet) as bar:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (total, dims)}
        np.lib.format.write_array_header_1_0(file, header)
        for batch in read_rows(ledger, plan, [field.name]):
            file.write(vectors(batch.column(field.name)).tobytes())
            done += batch.num_rows
            bar.count(done, total, "rows")
    _check_count(done, total)
    return done


def _check_count(done: int, total: int) -> None:
    if done != total:
        raise ShardmillError(
            f"The parts have {done:,} rows, but their commits say {total:,}.",
            hint="Check every part: shardmill verify RUN",
        )


def _size(out: str) -> int:
    store, key = locate(out)
    found = store.head(key)
    return found.size if found else 0
