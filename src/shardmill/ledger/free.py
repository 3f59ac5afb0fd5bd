"""Where a worker looks for shards that nobody works on.

The cost of a claim does not grow with the run, except for one pass at its end: a worker searches windows of as many
shards as a store lists at once. Windows begin at multiples of that number, so that the keys of a window are in order.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence

from shardmill.ledger.commit import Commits
from shardmill.ledger.folder import LISTED_AT_ONCE
from shardmill.ledger.lease import Leases
from shardmill.ledger.record import Claim
from shardmill.ledger.segment import Segments

_ASKED_WINDOWS = 2


class FreeShards:
    """One worker's path through the windows of a plan; windows in which nothing was free are skipped.

    It begins at the worker's own start. After a collision with other workers, and in later windows, it continues at a
    random shard instead of right behind them.
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
        """Drop the free shards that were found: they are out of date, and the window must be listed again."""
        self._free.clear()

    def found(self, free: Sequence[int]) -> None:
        """Set the free shards of the window; if there are none, move on to another."""
        if not free:
            self._move_on()
            return
        first = random.randrange(len(free)) if self._start is None else bisect_left(free, self._start)
        self._start = None
        self._free = deque([*free[first:], *free[:first]])

    def look_again(self, windows: Collection[int]) -> None:
        """Search these windows again: shards in them may be free now."""
        self._dry -= set(windows)
        self.window = next(iter(windows), None)

    def _move_on(self) -> None:
        assert self.window is not None
        self._start = None
        self._dry.add(self.window)
        others = [w for w in range(self._windows) if w not in self._dry]
        self.window = random.choice(others) if others else None


class FreeSearch:
    """Claims shards that nobody works on, and remembers where each worker has looked."""

    def __init__(self, commits: Commits, segments: Segments, leases: Leases) -> None:
        self._commits, self._segments, self._leases = commits, segments, leases
        self._ways: dict[tuple[str, int], FreeShards] = {}

    def reset(self) -> None:
        """Forget where workers have looked."""
        self._ways.clear()

    def take(self, worker: str, shards: int, slot: float, lease_s: float, held: Collection[int]) -> Claim | None:
        """Claim a free shard, from where this worker last found some or from a window it has not searched yet."""
        way = self._way(worker, shards, slot)
        while (claim := self._take_found(way, worker, lease_s, held)) is None and way.window is not None:
            way.found(self._look(way.window, shards, held))
        return claim

    def take_given_back(
        self, worker: str, shards: int, slot: float, lease_s: float, held: Collection[int], leased: Collection[int]
    ) -> Claim | None:
        """Claim a shard that was released after this worker had looked everywhere: neither done nor `leased`."""
        taken = {*held, *leased}
        windows = sorted({i // LISTED_AT_ONCE for i in self._commits.gaps(0, shards) if i not in taken})
        self._way(worker, shards, slot).look_again(random.sample(windows, min(_ASKED_WINDOWS, len(windows))))
        return self.take(worker, shards, slot, lease_s, held)

    def _way(self, worker: str, shards: int, slot: float) -> FreeShards:
        key = (worker, shards)
        if key not in self._ways:
            self._segments.believe_full_windows(shards)
            self._ways[key] = FreeShards(shards, int(slot * shards))
        return self._ways[key]

    def _look(self, window: int, shards: int, held: Collection[int]) -> list[int]:
        """The free shards of a window: neither done, nor leased, nor held."""
        stop = min(shards, (window + 1) * LISTED_AT_ONCE)
        gaps = self._commits.look_for_gaps(window * LISTED_AT_ONCE, stop)
        leased = set(self._leases.shards(gaps[0], stop)) if gaps else set()
        return [i for i in gaps if i not in leased and i not in held]

    def _take_found(self, way: FreeShards, worker: str, lease_s: float, held: Collection[int]) -> Claim | None:
        """Claim the next shard that was free when last listed, unless another worker has taken it since."""
        while (shard := way.next()) is not None:
            if shard in held:
                continue
            if (claim := self._leases.take(shard, worker, lease_s)) is not None:
                return claim
            way.give_up()
        return None
