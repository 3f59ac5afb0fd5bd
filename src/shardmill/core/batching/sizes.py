"""The memory that a sample takes, and the free memory."""

from __future__ import annotations

import os
import sys
from typing import Any

_PLAIN = frozenset((float, int, str, bool, bytes, type(None)))
_FLOAT_BYTES = sys.getsizeof(0.0)


def size_bytes(sample: Any) -> int:
    """Bytes of a sample, including nested containers, arrays and tensors. Shared objects count each time."""
    size = sys.getsizeof(sample)
    kind = type(sample)
    if kind is dict:
        # Keys do not count: they are nearly always names shared by all samples.
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
    """Memory available without swapping; the total memory if the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
