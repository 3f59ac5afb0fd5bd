"""Lines of JSON, and values as JSON in other formats.

Vectors are arrays, bytes are base64. JSON has neither NaN nor infinity: they are null, as is a missing vector.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa

from shardmill.core.errors import UsageError
from shardmill.core.jsonlines import encode_json, plain_value
from shardmill.results.files.chosen import Write
from shardmill.sinks.parquet import is_vector, vectors

_ROWS_AT_ONCE = 512


@contextmanager
def open_jsonl(file: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    """Write one object per line."""

    def write(batch: pa.RecordBatch) -> None:
        for at in range(0, batch.num_rows, _ROWS_AT_ONCE):
            rows = batch.slice(at, _ROWS_AT_ONCE)
            columns = [python_values(column) for column in rows.columns]
            lines = [to_json(dict(zip(schema.names, values, strict=True))) for values in zip(*columns, strict=True)]
            file.write(b"\n".join([*lines, b""]))

    yield write


def python_values(column: pa.Array) -> list[Any]:
    """The values of a column; those of vectors much faster than Arrow's own way."""
    if not is_vector(column.type):
        return list(column.to_pylist())
    found: list[Any] = vectors(column).tolist()
    if column.null_count:
        for missing in column.is_null().to_numpy(zero_copy_only=False).nonzero()[0]:
            found[missing] = None
    return found


def to_json(value: Any) -> bytes:
    try:
        return encode_json(value, _plain)
    except ValueError:
        return encode_json(_without_nan(value), _plain)
    except TypeError as error:
        raise UsageError(
            f"A row cannot be written: {error}.", hint="Leave its column out with --columns, or write a .parquet file."
        ) from error


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else plain_value(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    return [_without_nan(each) for each in value] if isinstance(value, list | tuple) else value
