"""Where a worker looks for shards that nobody is at."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence

# What an object store lists in one answer. Windows begin at multiples of it, so that the keys of one are in order.
LISTED_AT_ONCE = 1000


class FreeShards:
    """One worker's way through the windows of a plan; those in which nothing was free are left out.

    It begins at its own place. Where others got in its way, and in a window that is not its own, it goes on anywhere
    instead of right behind them.
    """

    def __init__(self, shards: int, start: int) -> None:
        self._windows = -(-shards // LISTED_AT_ONCE)
        self._start: int | None = start
        self._dry: set[int] = set()
        self._free: deque[int] = deque()
        self.window: int | None = start // LISTED_AT_ONCE if shards else None

    def next(self) -> int | None:
        return self._free.popleft() if self._free else None

    def give_up(self) -> None:
        """What was free is no longer: the window has to be looked at again."""
        self._free.clear()

    def found(self, free: Sequence[int]) -> None:
        """What is free in the window."""
        if not free:
            self._move_on()
            return
        first = random.randrange(len(free)) if self._start is None else bisect_left(free, self._start)
        self._start = None
        self._free = deque([*free[first:], *free[:first]])

    def look_again(self, windows: Collection[int]) -> None:
        """Something may have become free in these."""
        self._dry -= set(windows)
        self.window = next(iter(windows), None)

    def _move_on(self) -> None:
        assert self.window is not None
        self._start = None
        self._dry.add(self.window)
        others = [w for w in range(self._windows) if w not in self._dry]
        self.window = random.choice(others) if others else None
