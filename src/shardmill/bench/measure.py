"""Time and memory of a block of code."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_MIB = 1 << 20


@contextmanager
def measure_time() -> Iterator[dict[str, float]]:
    """Wall-clock and CPU seconds, filled in when the block ends.

    >>> with measure_time() as timer:
    ...     total = sum(range(1000))
    >>> timer["elapsed_seconds"] >= 0
    True
    """
    found: dict[str, float] = {}
    began, cpu = time.perf_counter(), time.process_time()
    try:
        yield found
    finally:
        found["elapsed_seconds"] = time.perf_counter() - began
        found["cpu_seconds"] = time.process_time() - cpu


@contextmanager
def measure_memory() -> Iterator[dict[str, float]]:
    """Resident memory before and after, its growth, and the peak of this process."""
    found = {"start_mb": _resident_bytes() / _MIB}
    try:
        yield found
    finally:
        found["end_mb"] = _resident_bytes() / _MIB
        found["delta_mb"] = found["end_mb"] - found["start_mb"]
        found["peak_mb"] = _peak_bytes() / _MIB


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return _peak_bytes()


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
