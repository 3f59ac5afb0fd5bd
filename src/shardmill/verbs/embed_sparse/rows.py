"""The column of sparse vectors: a list of records (index, weight), by ascending index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.sparse import INDEX, KIND, RECORD, WEIGHT, sparse_field
from shardmill.models.sparse.rows import SparseRows

SPARSE = "sparse"


def output_schema(dims: int) -> pa.Schema:
    """The column, which says how many words the vocabulary has."""
    return pa.schema([sparse_field(SPARSE, dims)])


def make_column(rows: SparseRows, null: NDArray[np.bool_]) -> pa.Array:
    """The rows as Arrow has them; a row that is null has no words."""
    kept = np.repeat(~null, rows.lengths)
    starts = np.concatenate([[0], np.cumsum(np.where(null, 0, rows.lengths))]).astype(np.int32)
    words, weights = pa.array(rows.words[kept]), pa.array(rows.weights[kept])
    records = pa.StructArray.from_arrays([words, weights], fields=list(RECORD))
    offsets = pa.array(starts, pa.int32())
    return pa.ListArray.from_arrays(offsets, records, type=KIND, mask=pa.array(null) if null.any() else None)


def distance(stored: Any, again: Any, most: int | None) -> float:
    """The largest difference of two weights, as a share of the largest weight, or of 1 if that is more.

    Of a stored row with only the `most` heaviest words, a word that is not there weighs what the lightest one does.
    """
    before, now = _to_weights(stored), _to_weights(again)
    if before is None or now is None:
        return 0.0 if before is now else 1.0
    if len(before) != len(stored) or (most is not None and len(before) > most):
        return 1.0
    lightest = min(before.values()) if most is not None and len(before) == most else 0.0
    apart = [abs(weight - now.get(word, 0.0)) for word, weight in before.items()]
    apart += [max(0.0, weight - lightest) for word, weight in now.items() if word not in before]
    return max(apart, default=0.0) / max(1.0, *now.values(), *before.values())


def _to_weights(value: Any) -> dict[int, float] | None:
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    return None if value is None else _by_word(value)


def _by_word(records: Sequence[dict[str, Any]]) -> dict[int, float]:
    return {record[INDEX]: record[WEIGHT] for record in records}
