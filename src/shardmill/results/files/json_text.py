"""Columns as JSON, one text per value: numbers, lists and structures in Arrow, other values in Python.

A float32 or float64 is the shortest text that reads back to the same bits, also through a float64.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.core.errors import UsageError
from shardmill.core.jsonlines import json_encoder, plain_value

_TEXT = pa.large_string()
_BYTES_AT_ONCE = 1 << 20
# Read as a float64 and then rounded, the shortest text of this float32 becomes its neighbour; of no other.
_TWICE_ROUNDED = np.uint32(0x15AE43FD).view(np.float32)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch whose texts fit into a few megabytes."""
    rows = max(1, _BYTES_AT_ONCE * batch.num_rows // max(1, batch.nbytes))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)


def json_texts(column: pa.Array) -> pa.Array:
    """Each value of a column as JSON; null for null, NaN and infinity."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _float_texts(column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(_TEXT)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list_texts(column)
    if pa.types.is_struct(kind) and kind.num_fields:
        return _with_nulls_of(column, join_objects([field.name for field in kind], column.flatten()))
    if pa.types.is_dictionary(kind):
        return json_texts(column.dictionary_decode())
    return pa.array([None if value is None else _encode(value) for value in column.to_pylist()], _TEXT)


def join_objects(names: list[str], columns: list[pa.Array], end: str = "") -> pa.Array:
    """Each row as a JSON object, followed by `end`."""
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        parts += [_scalar(f"{',' if parts else '{'}{_encode(name)}:"), json_texts(column).fill_null("null")]
    return _joined(*parts, _scalar("}" + end))


def _float_texts(column: pa.Array) -> pa.Array:
    numbers = column.to_numpy(zero_copy_only=False)
    if numbers.dtype == np.float16:
        numbers = numbers.astype(np.float32)
    texts = pa.array(numbers, mask=~np.isfinite(numbers)).cast(_TEXT)
    whole = numbers == np.rint(numbers)
    if whole.any():
        bare = pc.and_(pa.array(whole), pc.invert(pc.match_substring(texts, "e")))
        texts = pc.if_else(bare, _joined(texts, _scalar(".0")), texts)
    if numbers.dtype == np.float32 and (rounded := np.abs(numbers) == _TWICE_ROUNDED).any():
        texts = pc.if_else(pa.array(rounded), pa.array(numbers).cast(pa.float64()).cast(_TEXT), texts)
    return texts


def _list_texts(column: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    texts = json_texts(column.flatten()).fill_null("null")
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), texts)
    return _with_nulls_of(column, _joined(_scalar("["), pc.binary_join(lists, _scalar(",")), _scalar("]")))


def _with_nulls_of(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_null(), pa.scalar(None, _TEXT), texts) if column.null_count else texts


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(""))


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, _TEXT)


def _encode(value: Any) -> str:
    try:
        return _encode_plainly(value)
    except ValueError:
        return _encode_plainly(_without_nan(value))
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


_encode_plainly = json_encoder(_plain)
