"""The columns of token vectors: how many a row has, and the vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.token_vectors import TokenColumn
from shardmill.models.colbert.embedder import TokenRows
from shardmill.models.golden import cosines

COUNT, VECTORS = "tokens", "vectors"


def output_schema(column: TokenColumn) -> pa.Schema:
    return pa.schema([pa.field(COUNT, pa.int32()), column.field])


def make_rows(rows: TokenRows, column: TokenColumn, null: NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows as Arrow has them."""
    counts = pa.array(rows.counts.astype(np.int32), mask=null)
    return pa.record_batch([counts, column.write(rows.vectors, rows.counts, null)], schema=output_schema(column))


def distance(stored: Any, again: Any, column: TokenColumn) -> float:
    """1 minus the lowest cosine of the vectors of a row, 0 only if all are equal; 1 if there are more or fewer."""
    before, now = _read(stored, column), _read(again, column)
    if before is None or now is None or before.shape != now.shape:
        return 0.0 if before is None and now is None else 1.0
    if np.array_equal(before, now) or not len(before):
        return 0.0
    lowest = cosines(before.astype(np.float32), now.astype(np.float32)).min()
    return max(1.0 - float(lowest), float(np.finfo(np.float64).eps))


def _read(value: Any, column: TokenColumn) -> NDArray[Any] | None:
    if not isinstance(value, pa.Scalar):
        value = pa.scalar(value, column.field.type)
    return column.read_items(value.values) if value.is_valid else None
