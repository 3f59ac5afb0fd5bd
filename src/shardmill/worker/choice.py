"""Decides what a worker does next: claim a shard, wait, or leave the rest to others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from shardmill.ledger import Claim, Ledger
from shardmill.ledger.folder import LISTED_AT_ONCE
from shardmill.plan import Plan
from shardmill.worker.tail import is_left_to_others, live_peers, remaining_s

_SLOW = 3
_AHEAD_S = 15.0
# A branch is on a local disk, and its shards arrive one after another.
_LONGEST_PAUSE_S, _BRANCH_PAUSE_S = 2.0, 0.3
# Heartbeats per second of all workers together, however many. A worker without one for 30 s counts as dead.
_BEATS_PER_S = 100
_BEAT_S = (2.0, 10.0)
# A worker's relative speed changes slowly, and each check costs a dozen requests.
_ASK_AFTER_SHARDS = 8


class Choice:
    """The decisions of one worker, from the ledger and its own speed.

    `held` always maps each shard that the worker works on to the bytes done, in the order claimed. Where a worker is
    `alone` with a shard, nobody shadows it, and nobody leaves shards to others: the times of such shards say little.
    """

    def __init__(
        self,
        ledger: Ledger,
        plan: Plan,
        worker: str,
        *,
        kind: str,
        slot: float,
        lease_s: float,
        alone: bool = False,
    ) -> None:
        self.ledger, self.plan, self.worker, self._alone = ledger, plan, worker, alone
        self.kind, self.slot, self.lease_s = kind, slot, lease_s
        self.pace = 0.0
        self._durations: list[float] = []
        self._mean_bytes = plan.weight_bytes / max(1, len(plan.shards))
        self._ask_at, self.leaves = 0.0, False
        self._others_done_at = 0.0
        self._crowd = 1.0

    def committed(self, seconds: float) -> None:
        self._durations.append(seconds)

    def spare_s(self, held: Mapping[int, int]) -> float:
        """Seconds until this worker should claim another shard; until then it is better left to others."""
        return max(0.0, self._left_s(held) - _AHEAD_S)

    def claim(self, held: Mapping[int, int]) -> Claim | None:
        if self._leave_to_others(held):
            return None
        return self.ledger.claim(
            self.worker,
            len(self.plan.shards),
            lease_s=self.lease_s,
            slot=self.slot,
            slow_s=math.inf if self._alone else max(_SLOW * median(self._durations or [0.0]), self.lease_s),
            own_s=0.0 if self._alone else self.own_s(),
            held=held.keys(),
            wave=self.plan.work.wave,
        )

    def left_bytes(self, workers: int) -> int:
        """About how many bytes of the source are left for this one of `workers`, or more if more are alive; at least 1.

        What is done is counted in one listing, of the first shards.
        """
        looked = min(len(self.plan.shards), LISTED_AT_ONCE)
        left = len(self.ledger.commits.look_for_gaps(0, looked)) / max(1, looked)
        peers, each = live_peers(self.ledger, self.worker, self.lease_s)
        return max(1, int(self.plan.stat.size_bytes * left / max(workers, each * len(peers) + 1)))

    def is_over(self) -> bool:
        """Whether no work is left and none will come, unless somebody adds some later."""
        if self.ledger.see_growth(self.plan):
            return False
        return self.ledger.is_over(len(self.plan.shards))

    def own_s(self) -> float:
        """Seconds that this worker needs per shard; 0 while unknown."""
        return self._mean_bytes / self.pace if self.pace else 0.0

    def longest_pause_s(self) -> float:
        """The longest wait before looking again; longer if shards take longer."""
        if self.ledger.branch.assignment() is not None:
            return _BRANCH_PAUSE_S
        return max(_LONGEST_PAUSE_S, 0.0 if self._alone else min(self.own_s() / 8, self.lease_s / 4))

    def beat_s(self) -> float:
        """Seconds between two heartbeats."""
        least, most = _BEAT_S
        return min(max(least, self._crowd / _BEATS_PER_S), most, self.lease_s / 4)

    def crowd(self) -> float:
        """About how many workers the run has, this one included."""
        return self._crowd

    def due(self, shard: int, held: Mapping[int, int]) -> float:
        """When the worker expects to commit a shard that it works on; 0 while unknown."""
        if not self.pace:
            return 0.0
        until = list(held).index(shard) + 1
        return self.ledger.clock() + self._left_s(dict(list(held.items())[:until]))

    def _left_s(self, held: Mapping[int, int]) -> float:
        return remaining_s(self.plan, held, self.pace) if self.pace else 0.0

    def _leave_to_others(self, held: Mapping[int, int]) -> bool:
        now = self.ledger.clock()
        if now >= self._ask_at:
            self._ask(held, now)
        elif self._others_done_at:
            self.leaves = now + self._left_s(held) + self.own_s() > self._others_done_at
        return self.leaves and not self._alone

    def _ask(self, held: Mapping[int, int], now: float) -> None:
        peers, crowd = live_peers(self.ledger, self.worker, self.lease_s)
        self._crowd = crowd * len(peers) + 1
        self.leaves, rest_s = is_left_to_others(self.ledger, self.plan, self.kind, self.pace, held, peers, crowd)
        self._others_done_at = now + rest_s if rest_s else 0.0
        known = self.pace and any(peer["bytes_per_s"] for peer in peers)
        again_s = rest_s / 4 if rest_s else _ASK_AFTER_SHARDS * self.own_s() if known else 0.0
        self._ask_at = now + again_s
