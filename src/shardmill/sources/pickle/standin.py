"""Stand-ins for the few names that a pickle may load: they only store values, and refuse everything else."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np


class RefusedPickle(Exception):
    """Why a pickle is refused; `hint` is what to do instead."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


class Array:
    """Replaces a numpy array: its values as a list, once its state is set."""

    def __init__(self) -> None:
        self.values: list[object] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, in_columns, data = state
        self.values = _array(data, kind, shape, "F" if in_columns else "C")


class Dtype:
    """Replaces a numpy dtype of a number, date or text."""

    def __init__(self, kind: object, *_: object) -> None:
        if not isinstance(kind, str) or not re.fullmatch(r"O8?|[biufSUMm]\d{0,9}", kind):
            raise RefusedPickle("it holds a numpy array of neither numbers nor text", "Save plain values instead.")
        self.is_object = kind.startswith("O")
        self._kind, self._order, self._unit = kind, "=", ""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[3] is not None or state[4] is not None:
            raise RefusedPickle("it holds a numpy array of records", "Save plain values instead.")
        self._order = state[1] if state[1] in ("<", ">") else "="
        if self._kind[0] in "Mm" and len(state) > 8:
            unit, count = state[8][1][:2]
            unit = unit.decode() if isinstance(unit, bytes) else unit
            if unit not in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"):
                raise ValueError("a numpy date has no unit")
            self._unit = f"[{int(count)}{unit}]"

    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self._order + self._kind + self._unit)


def _array(data: object, kind: Dtype, shape: tuple[int, ...], order: str) -> list[object]:
    count = math.prod(shape)
    if kind.is_object:
        if not isinstance(data, list) or len(data) != count or len(shape) != 1:
            raise RefusedPickle("it holds a numpy array of objects that is not one-dimensional", "Save lists instead.")
        return data
    data, dtype = data.encode("latin1") if isinstance(data, str) else data, kind.numpy()
    if not isinstance(data, bytes | bytearray) or count * dtype.itemsize != len(data) or count > len(data):
        raise ValueError("a numpy array does not have its stated size")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C")
    if dtype.kind in "Mm":
        array = array.astype(f"{dtype.kind}8[us]")
    values = array.tolist()
    return values if isinstance(values, list) else [values]


def _make_array(*_: object) -> Array:
    return Array()


def _array_from_buffer(data: object, kind: Dtype, shape: tuple[int, ...], order: str, *_: object) -> Array:
    array = Array()
    array.values = _array(data, kind, shape, order)
    return array


def _scalar(kind: Dtype, data: object) -> object:
    return data if kind.is_object else _array(data, kind, (1,), "C")[0]


def _encode(text: str, encoding: str) -> bytes:
    """Protocols 0 to 2 write bytes this way."""
    if encoding != "latin1":
        raise RefusedPickle(f"it encodes a text as {str(encoding)[:80]!r}")
    return text.encode(encoding)


def _bytes(data: object = b"", encoding: str = "latin-1") -> bytes:
    """Like `bytes`, but refuses a number: `bytes(n)` would allocate n zeros."""
    if isinstance(data, str) and encoding == "latin-1":
        return data.encode(encoding)
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    raise RefusedPickle("it makes bytes from something that is not bytes")


def _decimal(text: object) -> decimal.Decimal:
    if not isinstance(text, str):
        raise RefusedPickle("it makes a decimal number from something that is not text")
    return decimal.Decimal(text)


def _list(values: object = ()) -> list[object]:
    if not isinstance(values, list | tuple):
        raise RefusedPickle("it makes a set from something that is not a list")
    return list(values)


def _dict(*factory: object) -> dict[object, object]:
    if any(isinstance(f, list | tuple | dict) for f in factory):
        raise RefusedPickle("it makes a dict in an unsupported way", "Save plain dicts instead.")
    return {}


def _factory(*_: object) -> None:
    """The factory of a defaultdict; a pickle may name it, but not call it."""
    raise RefusedPickle("it makes values by a function call", "Save plain values instead.")


class _Named:
    """A class that numpy pickles name, but that is never used."""


MOVED = {
    "__builtin__": "builtins",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
}
KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("_codecs", "encode"): _encode,
    ("builtins", "bytearray"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("builtins", "complex"): complex,
    ("builtins", "set"): _list,
    ("builtins", "frozenset"): _list,
    ("collections", "OrderedDict"): _dict,
    ("collections", "defaultdict"): _dict,
    **{("builtins", name): _factory for name in ("bool", "dict", "float", "int", "list", "str")},
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "date"): datetime.date,
    ("datetime", "time"): datetime.time,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
    ("decimal", "Decimal"): _decimal,
    ("numpy", "ndarray"): _Named,
    ("numpy", "dtype"): Dtype,
    ("numpy._core.multiarray", "_reconstruct"): _make_array,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _array_from_buffer,
}
