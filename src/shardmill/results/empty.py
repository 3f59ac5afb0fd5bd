"""Rows of a part that have no result: each needs an error on record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.plan import ITEM, Plan
from shardmill.sinks.parquet import is_vector
from shardmill.tasks.base import WINDOW

Mask = NDArray[np.bool_]


def made_vectors(rows: pa.Schema, plan: Plan) -> list[str]:
    """The vector columns that the task made; those of the source are data like any other."""
    return [field.name for field in rows if is_vector(field.type) and field.name not in plan.kept]


def find_empty(rows: pa.RecordBatch, plan: Plan) -> Mask:
    """Which rows lack a vector or, if the task makes none, have null in all columns of the task."""
    if names := made_vectors(rows.schema, plan):
        empty: Mask = np.logical_or.reduce([_nulls(rows, name) for name in names])
        return empty
    own = [name for name in rows.schema.names if name not in plan.kept and name not in (WINDOW, ITEM)]
    empty = np.full(rows.num_rows, bool(own))
    for name in own:
        empty &= _nulls(rows, name)
    return empty


def _nulls(rows: pa.RecordBatch, name: str) -> Mask:
    column = rows.column(name)
    if not column.null_count:
        return np.zeros(rows.num_rows, bool)
    found: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return found
