"""Frames, datasets and arrays of other libraries, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.errors import SourceError

_ROWS = 8192
_TOLD_VALUES = 10_000


def pandas_batches(frame: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a pandas DataFrame, without its index. Missing values are null."""
    names = [str(name) for name in frame.columns]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SourceError(f"The DataFrame has two columns named {twice!r}.", hint="Rename one of them.")
    frame = frame.set_axis(names, axis=1)
    schema = pa.schema([pa.field(name, _pandas_type(name, frame[name])) for name in names])
    for at in range(0, len(frame), _ROWS):
        yield pa.RecordBatch.from_pandas(frame.iloc[at : at + _ROWS], schema, preserve_index=False)


def _pandas_type(name: str, column: Any) -> pa.DataType:
    try:
        return pa.Array.from_pandas(column).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        kinds = sorted({type(value).__name__ for value in column.dropna().head(_TOLD_VALUES)})
        raise SourceError(
            f"The column {name!r} of the DataFrame holds objects that no one type fits ({', '.join(kinds)}).",
            hint=f"Convert it, such as by frame[{name!r}].astype(str), or drop it: frame.drop(columns=[{name!r}])",
        ) from error


def polars_batches(frame: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a Polars DataFrame."""
    _refuse_objects(frame.schema, "DataFrame")
    yield from pa.RecordBatchReader.from_stream(frame)


def _refuse_objects(schema: Any, what: str) -> None:
    """Polars gives such a column as addresses in memory."""
    for name, kind in schema.items():
        if str(kind) == "Object":
            raise SourceError(
                f"The column {name!r} of the {what} holds objects.", hint=f"Convert it, or drop it: .drop({name!r})"
            )


def lazy_batches(frame: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a Polars LazyFrame, as its streaming engine makes them: never all at once."""
    if not hasattr(frame, "collect_batches"):
        raise SourceError(
            "This version of Polars cannot stream a LazyFrame.", hint="Update it (pip install -U polars), or .collect()"
        )
    _refuse_objects(frame.collect_schema(), "LazyFrame")
    for piece in frame.collect_batches(maintain_order=True, lazy=True, engine="streaming"):
        yield from pa.RecordBatchReader.from_stream(piece)


def dataset_batches(dataset: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a Hugging Face dataset, also of one that streams."""
    for table in dataset.with_format("arrow").iter(batch_size=1000):
        yield from table.combine_chunks().to_batches()


def vector_batches(array: Any, name: str) -> Iterator[pa.RecordBatch]:
    """The rows of a matrix, each a vector."""
    for at in range(0, len(array), _ROWS):
        rows = np.ascontiguousarray(array[at : at + _ROWS])
        rows = rows.astype(np.float32) if rows.dtype == np.float16 else rows
        yield pa.record_batch({name: pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), array.shape[1])})
