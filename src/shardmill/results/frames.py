"""The result of a run as a table, and as the frames, datasets and arrays of other libraries.

They share the memory of the Arrow table where the library can. All of them hold the whole result in memory, except the
vectors of a run on a disk or in a store, which are memory-mapped.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import MissingExtra, UsageError, nearest
from shardmill.core.extras import missing_package
from shardmill.ledger import Ledger
from shardmill.plan import ROW, Plan
from shardmill.results.merge import part_schema, read_rows, refuse_table, stored_vectors
from shardmill.results.search import open_matrix
from shardmill.sinks.parquet import is_vector, vectors

Columns = list[str] | None


def count_rows(ledger: Ledger, plan: Plan) -> int:
    """The rows of a result, by its commits."""
    refuse_table(plan)
    return sum(commit.rows_in_part for commit in ledger.commits.read_complete(plan))


def result_batches(ledger: Ledger, plan: Plan, columns: Columns = None) -> Iterator[pa.RecordBatch]:
    """The result in source order, batch by batch. The first column is always `row`."""
    names = [ROW, *part_schema(ledger, plan).names]
    for name in columns or ():
        if name not in names:
            raise UsageError(f"The result has no column {name!r}.", hint=nearest(name, names))
    stored = None if columns is None else [name for name in columns if name != ROW]
    return read_rows(ledger, plan, stored)


def result_table(ledger: Ledger, plan: Plan, columns: Columns = None) -> pa.Table:
    """The whole result as one Arrow table; all columns have the same chunks."""
    found = list(result_batches(ledger, plan, columns))
    if found:
        return pa.Table.from_batches(found)
    own = [f for f in part_schema(ledger, plan) if columns is None or f.name in columns]
    return pa.schema([pa.field(ROW, pa.int64()), *own]).empty_table()


def to_pandas(ledger: Ledger, plan: Plan, columns: Columns = None) -> Any:
    """A pandas DataFrame whose columns have Arrow's types; a vector is a NumPy array, None if it is missing.

    Arrow's types need no copy, and a null among integers does not make floats of them.
    """
    pandas = _library("pandas")
    table = result_table(ledger, plan, columns)
    plain = [field.name for field in table.schema if not is_vector(field.type)]
    frame = table.select(plain).to_pandas(types_mapper=pandas.ArrowDtype, ignore_metadata=True)
    for i, name in enumerate(table.column_names):
        if name not in plain:
            frame.insert(i, name, pandas.Series(_row_views(table.column(name)), dtype=object))
    return frame


def to_polars(ledger: Ledger, plan: Plan, columns: Columns = None) -> Any:
    """A Polars DataFrame."""
    polars = _library("polars")
    return polars.from_arrow(result_table(ledger, plan, columns), rechunk=False)


def to_datasets(ledger: Ledger, plan: Plan, columns: Columns = None) -> Any:
    """A Hugging Face Dataset, whose fingerprint is made of the commits: the library would read all rows for one."""
    datasets = _library("datasets")
    table = result_table(ledger, plan, columns)
    known = [commit.digest for commit in ledger.commits.read_complete(plan)]
    made_of = "\n".join([*known, *table.column_names])
    try:
        return datasets.Dataset(table, fingerprint=hashlib.sha256(made_of.encode()).hexdigest()[:16])
    except ValueError as error:
        raise UsageError(f"datasets cannot hold this result: {error}", hint="Name the columns without it.") from error


def to_torch(ledger: Ledger, plan: Plan, columns: Columns = None) -> Any:
    """A map-style torch Dataset of dicts, with vectors as tensors."""
    _library("torch", "embed")
    from shardmill.results.torch_rows import TorchRows

    return TorchRows(result_table(ledger, plan, columns))


def read_matrix(ledger: Ledger, plan: Plan) -> NDArray[Any]:
    """All vectors in source order, with NaN for missing ones: memory-mapped, or in memory where the run itself is.

    Of a run in int8, uint8 or binary it has bytes, with the lowest in all places of a missing vector.
    """
    if not ledger.url.startswith("memory://"):
        return open_matrix(ledger, plan, quiet=True)
    stored = stored_vectors(ledger, plan)
    matrix = np.empty((count_rows(ledger, plan), stored.width), stored.dtype)
    at = 0
    for batch in read_rows(ledger, plan, [stored.name]):
        matrix[at : at + batch.num_rows] = stored.read(batch.column(stored.name))
        at += batch.num_rows
    return matrix


def _row_views(column: pa.ChunkedArray) -> NDArray[np.object_]:
    """Each vector as a view of its chunk; a chunk with missing vectors is copied."""
    views = np.empty(len(column), object)
    at = 0
    for chunk in column.chunks:
        missing = chunk.is_null().to_numpy(zero_copy_only=False)
        for vector, absent in zip(vectors(chunk), missing, strict=True):
            views[at] = None if absent else vector
            at += 1
    return views


def _library(name: str, extra: str = "") -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if extra:
            raise missing_package(name, extra) from error
        raise MissingExtra(f"{name} is not installed.", hint=f"Install it with: pip install {name}") from error
