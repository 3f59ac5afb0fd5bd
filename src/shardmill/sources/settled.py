"""Whether a local file has been as it is for long enough that a later change would show."""

from __future__ import annotations

import os
import time

# A disk's clock has ticks, of two seconds on some. A file that changed no longer ago may be written again in the same
# tick, which nothing tells.
_TICK_NS = 3 * 10**9


def settled(place: str, size: int, tag: str) -> str:
    """The number of a local file and when it last changed, its name and rights included.

    Empty if that was a moment ago, or if it has another size or time than was said before.
    """
    try:
        seen = os.stat(place)
    except OSError:
        return ""
    is_same = (seen.st_size, f"mtime-{seen.st_mtime_ns}") == (size, tag)
    is_old = 0 < seen.st_ctime_ns < time.time_ns() - _TICK_NS
    return f"{seen.st_ino}-{seen.st_ctime_ns}" if is_same and is_old else ""
