"""Pickles read without running them: plain values, dates and numpy arrays of numbers or texts, and nothing else.

Names that a pickle loads are never imported: a few are answered by stand-ins from here, all others are refused. It is
Python's own unpickler in its readable version that does it: the one in C sets memory aside for as many memo entries as
a hostile file asks for.
"""

from __future__ import annotations

import datetime
import decimal
import math
import pickle
import re
import struct
from collections.abc import Callable, Iterable
from typing import IO, Any, ClassVar

import numpy as np


class RefusedPickle(Exception):
    """Why a pickle is not read; `hint` is what to do instead."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


def load(file: IO[bytes], size: int) -> object:
    """The object in a file of that size."""
    bounded = _Bounded(file, size)
    try:
        value: object = _Unpickler(bounded, size).load()
    except RefusedPickle:
        raise
    except EOFError:
        raise RefusedPickle("it was cut short") from None
    except MemoryError:
        raise RefusedPickle("it asks for more memory than there is") from None
    except RecursionError:
        raise RefusedPickle("it is nested too deep") from None
    except Exception as error:
        raise RefusedPickle(f"it is broken ({type(error).__name__}: {str(error)[:200]})") from None
    if bounded.left:
        raise RefusedPickle(
            f"{bounded.left:,} bytes follow its first object", "Put all records into one list and dump it once."
        )
    return value


class _Bounded:
    """A file of which nothing can be asked that it does not hold: no memory is set aside for what will not come."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.left = file, size

    def read(self, count: int = -1) -> bytes:
        if count > self.left:
            raise EOFError
        data = self._file.read(count)
        self.left -= len(data)
        return data

    def readline(self) -> bytes:
        data = self._file.readline(self.left)
        self.left -= len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        view[:] = self.read(len(view))
        return len(view)


_Base: Any = pickle._Unpickler


class _Unpickler(_Base):  # type: ignore[misc]
    def __init__(self, file: _Bounded, size: int) -> None:
        super().__init__(file)
        self._allowance = size

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((_MOVED.get(module, module), name))
        if known is not None:
            return known if isinstance(known, type) else self._charged(known)
        if module.partition(".")[0] == "pandas":
            raise RefusedPickle("it holds a pandas object", "Save it as Parquet: df.to_parquet('data.parquet').")
        raise RefusedPickle(
            f"it tries to load {module[:80]}.{name[:80]}; nothing of it was run",
            "Only plain records are read from pickles. If you trust the file, load it yourself and save it as Parquet.",
        )

    def persistent_load(self, pid: object) -> Any:
        raise RefusedPickle("it points to objects outside the file", "Save plain records instead.")

    def get_extension(self, code: int) -> None:
        raise RefusedPickle(f"it uses the extension code {code}", "Save plain records instead.")

    def _charged(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self._charge(given)
            return make(*given)

        return call

    def _charge(self, given: Iterable[object]) -> None:
        """A piece of the file is made into a value once: a few bytes that make copies of a large one are refused."""
        self._allowance -= sum(len(g) for g in given if isinstance(g, str | bytes | bytearray | list | tuple))
        if self._allowance < 0:
            raise RefusedPickle("it unfolds into more than it holds")

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Array | _Dtype) or not isinstance(state, tuple):
            raise RefusedPickle("it sets the state of an object that is not plain", "Save plain records instead.")
        self._charge(state)
        self.stack[-1].__setstate__(state)

    def load_bytearray8(self) -> None:
        (count,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(count))

    def load_setitem(self) -> None:
        check_keys([self.stack[-2]])
        super().load_setitem()

    def load_setitems(self) -> None:
        check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        check_keys(self.stack[::2])
        super().load_dict()

    dispatch: ClassVar[dict[int, Any]] = {
        **_Base.dispatch,
        pickle.BUILD[0]: load_build,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
        # A record's set is a list to us, and making one of deeply nested tuples would end the process.
        pickle.EMPTY_SET[0]: _Base.load_empty_list,
        pickle.ADDITEMS[0]: _Base.load_appends,
        pickle.FROZENSET[0]: _Base.load_list,
    }


def check_keys(keys: Iterable[object]) -> None:
    """Only plain keys: hashing deeply nested tuples would end the process."""
    if any(isinstance(key, tuple) for key in keys):
        raise RefusedPickle("a dict in it has tuples as keys", "Save records whose keys are texts.")


class Array:
    """Stands for a numpy array: its values as a list, once its state is known."""

    def __init__(self) -> None:
        self.values: list[object] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, in_columns, data = state
        self.values = _array(data, kind, shape, "F" if in_columns else "C")


class _Dtype:
    """Stands for a numpy dtype of one number, date or text."""

    def __init__(self, kind: object, *_: object) -> None:
        if not isinstance(kind, str) or not re.fullmatch(r"O8?|[biufSUMm]\d{0,9}", kind):
            raise RefusedPickle("it holds a numpy array of other than numbers and texts", "Save plain values instead.")
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


def _array(data: object, kind: _Dtype, shape: tuple[int, ...], order: str) -> list[object]:
    count = math.prod(shape)
    if kind.is_object:
        if not isinstance(data, list) or len(data) != count or len(shape) != 1:
            raise RefusedPickle("it holds a numpy array of objects that is not one plain row", "Save lists instead.")
        return data
    data, dtype = data.encode("latin1") if isinstance(data, str) else data, kind.numpy()
    if not isinstance(data, bytes | bytearray) or count * dtype.itemsize != len(data) or count > len(data):
        raise ValueError("a numpy array has another size than it says")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C")
    if dtype.kind in "Mm":
        array = array.astype(f"{dtype.kind}8[us]")
    values = array.tolist()
    return values if isinstance(values, list) else [values]


def _make_array(*_: object) -> Array:
    return Array()


def _array_from_buffer(data: object, kind: _Dtype, shape: tuple[int, ...], order: str, *_: object) -> Array:
    array = Array()
    array.values = _array(data, kind, shape, order)
    return array


def _scalar(kind: _Dtype, data: object) -> object:
    return data if kind.is_object else _array(data, kind, (1,), "C")[0]


def _encode(text: str, encoding: str) -> bytes:
    """How protocols 0 to 2 write bytes."""
    if encoding != "latin1":
        raise RefusedPickle(f"it encodes a text as {str(encoding)[:80]!r}")
    return text.encode(encoding)


def _bytes(data: object = b"", encoding: str = "latin-1") -> bytes:
    """Never a number of zeros, as Python's own would make: that is memory for nothing."""
    if isinstance(data, str) and encoding == "latin-1":
        return data.encode(encoding)
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    raise RefusedPickle("it makes bytes of something that is not bytes")


def _decimal(text: object) -> decimal.Decimal:
    if not isinstance(text, str):
        raise RefusedPickle("it makes a decimal number of something that is not text")
    return decimal.Decimal(text)


def _list(values: object = ()) -> list[object]:
    if not isinstance(values, list | tuple):
        raise RefusedPickle("it makes a set of something that is not a list")
    return list(values)


def _dict(*factory: object) -> dict[object, object]:
    if any(isinstance(f, list | tuple | dict) for f in factory):
        raise RefusedPickle("it makes a dict in a way of its own", "Save plain dicts instead.")
    return {}


def _factory(*_: object) -> None:
    """What a defaultdict would call for a missing key; nothing here does."""
    raise RefusedPickle("it makes values by a call", "Save plain values instead.")


class _Named:
    """A class that numpy's pickles name and that is never needed."""


_MOVED = {
    "__builtin__": "builtins",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
}
_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
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
    ("numpy", "dtype"): _Dtype,
    ("numpy._core.multiarray", "_reconstruct"): _make_array,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _array_from_buffer,
}
