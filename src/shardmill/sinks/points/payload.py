"""The columns of a row as vector databases keep them beside a vector: numbers, truth values and texts by name.

Nulls are left out. Lists and structures are JSON, times and decimals texts, as are numbers that JSON does not have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from shardmill.core.hashing import Hashes, hash_column

# The digest of the whole row, vector and all, as it is in the run.
DIGEST = "shardmill_digest"
_LARGEST = (1 << 63) - 1


def is_held(kind: pa.DataType) -> bool:
    """Whether values of this type can be kept: bytes cannot."""
    if pa.types.is_dictionary(kind):
        return is_held(kind.value_type)
    return not any(
        is_bytes(kind)
        for is_bytes in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
            pa.types.is_binary_view,
        )
    )


def encode(column: pa.Array) -> list[Any]:
    """The values of a column as they are kept; None for a null.

    >>> encode(pa.array([[1, 2], None])), encode(pa.array([1.5, float("inf")]))
    (['[1, 2]', None], [1.5, 'inf'])
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return encode(column.dictionary_decode())
    if pa.types.is_nested(kind):
        return [None if value is None else to_json(value) for value in column.to_pylist()]
    if pa.types.is_floating(kind):
        values = column.cast(pa.float64()).to_pylist()
        return [value if value is None or math.isfinite(value) else repr(value) for value in values]
    if pa.types.is_uint64(kind):
        return [value if value is None or value <= _LARGEST else str(value) for value in column.to_pylist()]
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_text(kind)):
        column = column.cast(pa.string())
    found: list[Any] = column.to_pylist()
    return found


def decode(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Undo `encode`. What another program wrote, and is not of this type, is null."""
    if pa.types.is_dictionary(kind):
        return decode(values, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_nested(kind):
        return pa.array([_try(json.loads, value) for value in values], kind)
    if pa.types.is_boolean(kind):
        return pa.array([value if isinstance(value, bool) else None for value in values], kind)
    if pa.types.is_integer(kind):
        return pa.array([_try(int, value) for value in values], kind)
    if pa.types.is_floating(kind):
        return pa.array([_try(float, value) for value in values], pa.float64()).cast(kind)
    if not is_held(kind):
        return pa.nulls(len(values), kind)
    texts = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
    return texts if kind == pa.string() else texts.cast(kind)


def hash_payloads(payloads: Sequence[Mapping[str, Any]]) -> Hashes:
    """A hash of each payload, the same for 1 and 1.0: some stores do not tell them apart."""
    texts = [to_json({name: _plain(value) for name, value in payload.items()}) for payload in payloads]
    return hash_column(pa.array(texts, pa.large_string()))


def to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_text(kind: pa.DataType) -> bool:
    return any(is_text(kind) for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _try(read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return None if value is None else read(value)
    except (TypeError, ValueError, OverflowError):
        return None
