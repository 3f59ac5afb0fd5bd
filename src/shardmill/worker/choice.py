"""What a worker does next: claim a shard, wait, or leave the rest to others. It reads no items and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median

from shardmill.ledger import Claim, Ledger
from shardmill.plan import Plan
from shardmill.worker.tail import is_left_to_others, live_peers, remaining_s

_SLOW = 3
_AHEAD_S = 15.0
# A branch is on a disk, and its shards come one after another.
_LONGEST_PAUSE_S, _BRANCH_PAUSE_S = 2.0, 0.3
# All workers together beat about so often a second, however many they are; others take them for dead after 30 s.
_BEATS_PER_S = 100
_BEAT_S = (2.0, 10.0)
# Who is not slow now will hardly be so some shards later, and each time costs a dozen requests.
_ASK_AFTER_SHARDS = 8


class Choice:
    """The decisions of one worker, from its ledger and what it knows of its own speed.

    `held`, everywhere, has the bytes done of each shard that the worker is at, in the order it was claimed.
    """

    def __init__(self, ledger: Ledger, plan: Plan, worker: str, *, kind: str, slot: float, lease_s: float) -> None:
        self.ledger, self.plan, self.worker = ledger, plan, worker
        self.kind, self.slot, self.lease_s = kind, slot, lease_s
        self.pace = 0.0
        self._durations: list[float] = []
        self._mean_bytes = fmean(s.weight_bytes for s in plan.shards) if plan.shards else 0.0
        self._ask_at, self.leaves = 0.0, False
        self._others_done_at = 0.0
        self._crowd = 1.0

    def committed(self, seconds: float) -> None:
        self._durations.append(seconds)

    def spare_s(self, held: Mapping[int, int]) -> float:
        """How long what is at hand lasts before more should be: until then it is better claimed by another."""
        return max(0.0, self._left_s(held) - _AHEAD_S)

    def claim(self, held: Mapping[int, int]) -> Claim | None:
        if self._leave_to_others(held):
            return None
        return self.ledger.claim(
            self.worker,
            len(self.plan.shards),
            lease_s=self.lease_s,
            slot=self.slot,
            slow_s=max(_SLOW * median(self._durations or [0.0]), self.lease_s),
            own_s=self.own_s(),
            held=held.keys(),
        )

    def is_over(self) -> bool:
        return self.ledger.is_over(len(self.plan.shards))

    def own_s(self) -> float:
        """What a shard takes this worker, 0 while that is not known."""
        return self._mean_bytes / self.pace if self.pace else 0.0

    def longest_pause_s(self) -> float:
        """How long to wait at most before looking again; the longer shards take, the less is missed."""
        if self.ledger.branch.assignment() is not None:
            return _BRANCH_PAUSE_S
        return max(_LONGEST_PAUSE_S, min(self.own_s() / 8, self.lease_s / 4))

    def beat_s(self) -> float:
        """How long the heart rests between two beats."""
        least, most = _BEAT_S
        return min(max(least, self._crowd / _BEATS_PER_S), most, self.lease_s / 4)

    def due(self, shard: int, held: Mapping[int, int]) -> float:
        """When the worker expects to commit a shard that it is at, 0 while it cannot tell."""
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
        return self.leaves

    def _ask(self, held: Mapping[int, int], now: float) -> None:
        peers, crowd = live_peers(self.ledger, self.worker, self.lease_s)
        self._crowd = crowd * len(peers) + 1
        self.leaves, rest_s = is_left_to_others(self.ledger, self.plan, self.kind, self.pace, held, peers, crowd)
        self._others_done_at = now + rest_s if rest_s else 0.0
        known = self.pace and any(peer["bytes_per_s"] for peer in peers)
        again_s = rest_s / 4 if rest_s else _ASK_AFTER_SHARDS * self.own_s() if known else 0.0
        self._ask_at = now + again_s
