"""NumPy's BLAS on one thread: its own threads wait for work by spinning, which costs more than they help with rows."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

# As NumPy's wheels name OpenBLAS's functions, with 32 and 64 bits, and as other builds do.
_SPELLINGS = tuple(f"{prefix}openblas_{{}}_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", ""))
_lock = threading.Lock()
_held: list[int] = []
_holders = 0


@dataclass(frozen=True, slots=True)
class _Threads:
    """The number of threads of a library."""

    get: Callable[[], int]
    set: Callable[[int], object]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold the OpenBLAS of this process to one thread, until the last holder leaves; another BLAS is left alone."""
    global _held, _holders
    with _lock:
        _holders += 1
        if _holders == 1:
            _held = [library.get() for library in _libraries()]
            for library in _libraries():
                library.set(1)
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders:
                for library, threads in zip(_libraries(), _held, strict=True):
                    library.set(threads)


@cache
def _libraries() -> tuple[_Threads, ...]:
    """The OpenBLAS libraries that are loaded; none where that cannot be seen."""
    import numpy as np  # noqa: F401

    paths: set[str] = set()
    with suppress(OSError), open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
    return tuple(found for path in sorted(paths) if (found := _find_functions(path)) is not None)


def _find_functions(path: str) -> _Threads | None:
    with suppress(OSError):
        library = ctypes.CDLL(path)
        for spelling in _SPELLINGS:
            with suppress(AttributeError):
                return _Threads(library[spelling.format("get")], library[spelling.format("set")])
    return None
