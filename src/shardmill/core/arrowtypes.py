"""The names of Arrow types, as plans have them, and what NumPy calls them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.errors import SourceError

NAMED = {
    "string": pa.string(),
    "int64": pa.int64(),
    "int32": pa.int32(),
    "float64": pa.float64(),
    "double": pa.float64(),
    "float32": pa.float32(),
    "float": pa.float32(),
    "bool": pa.bool_(),
}
_PATTERNS: list[tuple[str, Callable[..., pa.DataType]]] = [
    (r"timestamp\[(s|ms|us|ns), tz=(.+)\]", lambda unit, tz: pa.timestamp(unit, tz)),
    (r"decimal128\((\d+), (-?\d+)\)", lambda precision, scale: pa.decimal128(int(precision), int(scale))),
    (r"decimal256\((\d+), (-?\d+)\)", lambda precision, scale: pa.decimal256(int(precision), int(scale))),
    (r"fixed_size_binary\[(\d+)\]", lambda width: pa.binary(int(width))),
    (r"list<(\w+): ([^<>]+)>", lambda name, item: pa.list_(pa.field(name, arrow_type(item)))),
    (r"arrow:(.+)", lambda text: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type),
]


def arrow_type(text: str) -> pa.DataType:
    """Parse a type that `type_text` wrote.

    >>> arrow_type("timestamp[us, tz=UTC]")
    TimestampType(timestamp[us, tz=UTC])
    """
    for pattern, build in _PATTERNS:
        if match := re.fullmatch(pattern, text):
            return build(*match.groups())
    try:
        return NAMED.get(text) or pa.type_for_alias(text)
    except ValueError:
        raise SourceError(f"{text!r} is not a column type.", hint=f"Use one of {', '.join(NAMED)}.") from None


def type_text(kind: pa.DataType) -> str:
    """The name of a type, for `arrow_type` to parse; nested types without a readable name become their Arrow schema."""
    try:
        if arrow_type(str(kind)) == kind:
            return str(kind)
    except SourceError:
        pass
    return "arrow:" + base64.b64encode(pa.schema([pa.field("", kind)]).serialize().to_pybytes()).decode()


def numpy_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """NumPy's type of the numbers in an Arrow array, without pandas, which pyarrow 19 to 22 import for that.

    >>> numpy_dtype(pa.float16())
    dtype('float16')
    """
    found: np.dtype[Any] = pa.array([], kind).to_numpy().dtype
    return found
