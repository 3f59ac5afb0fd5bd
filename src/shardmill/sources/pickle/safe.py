"""Reads pickles without executing code: plain values, dates and numpy arrays of numbers or text, nothing else.

Names that a pickle loads are never imported: stand-ins replace a few, all others are refused. This uses the pure Python
unpickler, because the C version allocates as many memo entries as a hostile file asks for.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable
from typing import IO, Any, ClassVar

from shardmill.sources.pickle.standin import KNOWN, MOVED, Array, Dtype, RefusedPickle


def load(file: IO[bytes], size: int) -> object:
    """Load the object from a file of `size` bytes."""
    bounded = _Bounded(file, size)
    try:
        value: object = _Unpickler(bounded, size).load()
    except RefusedPickle:
        raise
    except EOFError:
        raise RefusedPickle("it is truncated") from None
    except MemoryError:
        raise RefusedPickle("it asks for more memory than is available") from None
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
    """A file that refuses reads beyond its end, so that no memory is allocated for data that does not exist."""

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
        known = KNOWN.get((MOVED.get(module, module), name))
        if known is not None:
            return known if isinstance(known, type) else self._charged(known)
        if module.partition(".")[0] == "pandas":
            raise RefusedPickle("it holds a pandas object", "Save it as Parquet: df.to_parquet('data.parquet').")
        raise RefusedPickle(
            f"it tries to load {module[:80]}.{name[:80]}; nothing was executed",
            "Only plain records are read from pickles. If you trust the file, load it yourself and save it as Parquet.",
        )

    def persistent_load(self, pid: object) -> Any:
        raise RefusedPickle("it refers to objects outside the file", "Save plain records instead.")

    def get_extension(self, code: int) -> None:
        raise RefusedPickle(f"it uses the extension code {code}", "Save plain records instead.")

    def _charged(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self._charge(given)
            return make(*given)

        return call

    def _charge(self, given: Iterable[object]) -> None:
        """Each byte of the file may be used in a value once: refuse a few bytes that copy a large value."""
        self._allowance -= sum(len(g) for g in given if isinstance(g, str | bytes | bytearray | list | tuple))
        if self._allowance < 0:
            raise RefusedPickle("it expands to more data than it contains")

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Array | Dtype) or not isinstance(state, tuple):
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
        # A set becomes a list, because hashing deeply nested tuples would crash the process.
        pickle.EMPTY_SET[0]: _Base.load_empty_list,
        pickle.ADDITEMS[0]: _Base.load_appends,
        pickle.FROZENSET[0]: _Base.load_list,
    }


def check_keys(keys: Iterable[object]) -> None:
    """Refuse tuples as keys: hashing deeply nested tuples would crash the process."""
    if any(isinstance(key, tuple) for key in keys):
        raise RefusedPickle("a dict in it has tuples as keys", "Save records whose keys are strings.")
