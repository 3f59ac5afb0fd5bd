"""The shards that a worker holds, from claim to commit, and their leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from shardmill.ledger import Claim, Ledger
from shardmill.sinks.base import Staged
from shardmill.worker.channel import Stopped
from shardmill.worker.choice import Choice
from shardmill.worker.pulse import quietly
from shardmill.worker.tally import OpenShard, Tally

_OPEN_SHARDS = 2
_LOOK_EVERY_S = 0.2


class OpenShards:
    """Used by all threads of a worker: the reader claims, the pulse renews, the writer closes.

    A worker that is `alone` with its shard has no other, and stops working on it if it does not hold it any more.
    """

    def __init__(
        self,
        ledger: Ledger,
        choice: Choice,
        tally: Tally,
        *,
        worker: str,
        lease_s: float,
        stop: threading.Event,
        leaves: Callable[[], bool] | None = None,
        alone: bool = False,
    ) -> None:
        self._leaves, self._alone = leaves, alone
        self._ledger, self._choice, self._tally = ledger, choice, tally
        self._worker, self._lease_s, self._stop = worker, lease_s, stop
        self._woken = threading.Event()
        self._slots = threading.Semaphore(1 if alone else _OPEN_SHARDS)
        self._lock = threading.Lock()
        self._open: dict[int, OpenShard] = {}
        self._leased: dict[int, Claim] = {}
        self._releasing = threading.Lock()

    def __getitem__(self, shard: int) -> OpenShard:
        return self._open[shard]

    def held(self) -> list[OpenShard]:
        """In the order they were claimed."""
        with self._lock:
            return list(self._open.values())

    def describe(self) -> dict[str, dict[str, Any]]:
        """What a heartbeat says of each shard: what was done, when it is due (0 while unknown), the last report."""
        held = self.held()
        done = {s.claim.shard: s.bytes_run for s in held}
        dues = {shard: self._choice.due(shard, done) for shard in done}
        return {
            str(s.claim.shard): {
                "rows": s.rows_run,
                "bytes": s.bytes_run,
                "due": round(dues[s.claim.shard], 1),
                "since": round(s.began, 1),
                **s.said,
            }
            for s in held
        }

    def next_claim(self, has_work: Callable[[], bool]) -> Claim | None:
        """Claim the next shard; waits while others work on the last ones; None when all are committed.

        While the worker `has_work` for some time, it claims nothing: another worker would start the shard earlier. A
        worker that `leaves` does not wait: None also if nothing can be claimed now, or it is to claim no more.
        """
        while not self._slots.acquire(timeout=_LOOK_EVERY_S):
            if self._stop.is_set():
                raise Stopped
        while has_work() and self._choice.spare_s(self._bytes_held()):
            if self._stop.wait(_LOOK_EVERY_S):
                raise Stopped
        pause = 0.05
        while not self._stop.is_set():
            claim = None if self._is_to_leave() else self._choice.claim(self._bytes_held())
            if claim is not None:
                self._keep(claim)
                return claim
            if self._leaves is not None or self._ledger.staff.is_ending or self._choice.is_over():
                return None
            self._woken.wait(pause)
            self._woken.clear()
            pause = min(self._choice.longest_pause_s(), pause * 1.5)
        raise Stopped

    def _is_to_leave(self) -> bool:
        """Whether to claim no more: the run is ending, or a worker of a pool goes elsewhere."""
        return self._ledger.staff.is_ending or (self._leaves is not None and self._leaves())

    def _keep(self, claim: Claim) -> None:
        """Remember a lease. `release` may have run while the claim was under way: then this one is released too."""
        with self._lock:
            self._leased[claim.shard] = claim
        if self._stop.is_set():
            self.release()
            raise Stopped

    def wake(self) -> None:
        """End the wait in `next_claim`, to look for a shard or to stop."""
        self._woken.set()

    def open(self, claim: Claim, staged: Staged) -> OpenShard:
        shard = OpenShard(claim, time.time(), staged, rows_run=staged.done, next_row=staged.done)
        if staged.carried is not None:
            shard.count_as(staged.carried)
        with self._lock:
            self._open[claim.shard] = shard
        return shard

    def turn_down(self, claim: Claim) -> None:
        """Release a claim that could not be opened, for others."""
        quietly(self._ledger.leases.release, claim, self._worker)

    def renew(self) -> None:
        """Renew the leases; shards that others have committed are marked lost, for good: their rows are dropped."""
        held = self._bytes_held()
        for shard in self.held():
            if shard.claim.shard in held and not shard.lost:
                quietly(self._renew_one, shard, self._choice.due(shard.claim.shard, held))

    def _renew_one(self, shard: OpenShard, due: float) -> None:
        leases, claim = self._ledger.leases, shard.claim
        if self._alone:
            held = leases.hold(claim, self._worker, self._lease_s)
        else:
            held = leases.renew(claim, self._worker, self._lease_s, due)
        shard.lost = not held

    def hold(self, shard: OpenShard, got_further: bool) -> bool:
        """Whether a shard is still held; if its work got further, the crashes of earlier holders are forgiven."""
        shard.lost = not self._ledger.leases.hold(shard.claim, self._worker, self._lease_s, forgiven=got_further)
        return not shard.lost

    def _bytes_held(self) -> dict[int, int]:
        """The bytes done of each shard; also updates the pace while shards are held."""
        held = {s.claim.shard: s.bytes_run for s in self.held()}
        if held:
            self._choice.pace = self._tally.rates()["bytes_per_s"] or self._choice.pace
        return held

    def close_committed(self, shard: OpenShard, seconds: float, won: bool) -> None:
        self._bytes_held()
        self._choice.committed(seconds)
        self._close(shard, won=won)

    def give_up(self, shard: OpenShard) -> None:
        """Drop a shard that another worker has committed."""
        shard.staged.abandon()
        self._close(shard, won=False)

    def _close(self, shard: OpenShard, *, won: bool) -> None:
        """Forget a shard. Only its committer ends any lease: in a branch, another's commit may be gone by now."""
        self._tally.closed(shard)
        with self._lock:
            del self._open[shard.claim.shard]
            self._leased.pop(shard.claim.shard, None)
        quietly(self._ledger.suspects.delete, shard.claim.shard)
        if won and self._alone:
            quietly(self._ledger.checkpoints.delete, shard.claim.shard)
        if won:
            quietly(self._ledger.leases.retire, shard.claim.shard)
        else:
            quietly(self._ledger.leases.release, shard.claim, self._worker)
        self._slots.release()
        self._woken.set()

    def give_back(self, *, release: bool) -> None:
        """Abandon staged rows when the worker ends, and `release` the leases for others."""
        for shard in self.held():
            shard.staged.abandon()
        if release:
            self.release()

    def release(self) -> None:
        """Give back the leases, from any thread and before the work on their shards has ended; returns once it is done.

        A shard that is committed after all stays committed: a lease is only a hint.
        """
        with self._releasing:
            with self._lock:
                leased, self._leased = list(self._leased.values()), {}
            for claim in leased:
                quietly(self._ledger.leases.release, claim, self._worker)
