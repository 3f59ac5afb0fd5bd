"""How much memory a sample takes, and how much is left."""

from __future__ import annotations

import os
import sys
from typing import Any

_PLAIN = frozenset((float, int, str, bool, bytes, type(None)))
_FLOAT_BYTES = sys.getsizeof(0.0)


def size_bytes(sample: Any) -> int:
    """Bytes of a sample with what it holds: containers, arrays and tensors. What it holds twice counts twice."""
    size = sys.getsizeof(sample)
    kind = type(sample)
    if kind is dict:
        # The keys are nearly always names that all samples share.
        for value in sample.values():
            size += _FLOAT_BYTES if type(value) is float else size_bytes(value)
        return size
    if kind in _PLAIN:
        return size
    held = getattr(sample, "nbytes", None)
    if isinstance(held, int):
        return max(held, size)
    if isinstance(sample, dict | list | tuple | set | frozenset):
        return size + sum(size_bytes(v) for v in (sample.values() if isinstance(sample, dict) else sample))
    return size


def free_bytes() -> int:
    """Memory that can be had without pushing anything out; all there is where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
