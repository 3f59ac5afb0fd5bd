"""Who is at which shard. Leases are hints that save double work; they decide nothing.

What a claim costs does not grow with the run, but for one pass at its end: shards are looked for in windows of as many
as a store lists at once, and when none is free, a few leases stand for all.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from shardmill.ledger.branch import Branch
from shardmill.ledger.free import LISTED_AT_ONCE, FreeShards
from shardmill.ledger.records import Claim, Lease, encode
from shardmill.store import Store

_ASKED_LEASES = 16
_ASKED_WINDOWS = 2
# A shadow that would be done only a little before the holder is not worth its work.
_WORTH = 1.25


class Leases(Branch):
    def __init__(self, place: str | os.PathLike[str] | Store, clock: Callable[[], float] = time.time) -> None:
        super().__init__(place, clock)
        self._searches: dict[tuple[str, int], FreeShards] = {}
        self._seen_done = bytearray()

    def _forget(self) -> None:
        super()._forget()
        self._searches.clear()
        self._seen_done.clear()

    def claim(
        self,
        worker: str,
        shards: int,
        *,
        lease_s: float,
        slot: float = 0.0,
        slow_s: float = 60.0,
        own_s: float = 0.0,
        held: Collection[int] = (),
        among: Collection[int] | None = None,
    ) -> Claim | None:
        """Take a shard nobody is at: a free one, else one whose holder is gone, else the slowest near the end.

        `slot` in [0, 1) is where in the list this worker starts looking, so that many workers do not all try the same;
        `held` are the shards it is at already. A holder is slow who would be done later than this worker, which takes
        `own_s` for a shard; where one of the two is not known, who has been at it for `slow_s`. Where a hand was dealt
        to this folder, or `among` names some shards, it is one of those.
        """
        self._make_room(shards)
        if among is None and (hand := self.assignment()) is not None:
            among = hand.shards
        if among is not None:
            pending = [i for i in sorted(among) if i not in held and not self._is_done(i)]
            first = int(slot * len(pending))
            found = (self._try(i, worker, lease_s) for i in [*pending[first:], *pending[:first]])
            claim = next(filter(None, found), None)
            return claim or self._take_over(worker, pending, lease_s, slow_s, own_s)
        key = (worker, shards)
        search = self._searches.get(key) or self._searches.setdefault(key, FreeShards(shards, int(slot * shards)))
        claim = self._claim_free(search, worker, shards, lease_s, held)
        if claim is not None:
            return claim
        leased = {i for i in self._indices("leases") if i < shards and not self._seen_done[i] and i not in held}
        if search.window is None:
            strays = {i // LISTED_AT_ONCE for i in self._not_seen_done(shards) if i not in leased and i not in held}
            search.look_again(random.sample(sorted(strays), min(_ASKED_WINDOWS, len(strays))))
            if (claim := self._claim_free(search, worker, shards, lease_s, held)) is not None:
                return claim
        return self._take_over(worker, sorted(leased), lease_s, slow_s, own_s)

    def is_over(self, shards: int) -> bool:
        """Whether nothing is left to do here, nor will be: all shards are committed, or all of a hand that is final."""
        hand = self.assignment()
        if hand is None:
            return self.is_complete(shards)
        self._make_room(shards)
        return self.clock() >= hand.until and all(map(self._is_done, hand.shards))

    def is_complete(self, shards: int) -> bool:
        """Whether all shards are committed; only those are asked for that were not when last looked at."""
        self._make_room(shards)
        at = self._seen_done.find(0, 0, shards)
        while at >= 0:
            stop = min(shards, (at // LISTED_AT_ONCE + 1) * LISTED_AT_ONCE)
            self._see_done(at, stop)
            at = self._seen_done.find(0, 0, shards)
            if 0 <= at < stop:
                return False
        return True

    def _make_room(self, shards: int) -> None:
        self._known_generation()
        self._seen_done.extend(bytes(max(0, shards - len(self._seen_done))))

    def _see_done(self, start: int, stop: int) -> None:
        for shard in self._indices("commits", start, stop):
            self._seen_done[shard] = 1

    def _not_seen_done(self, shards: int) -> Iterator[int]:
        at = self._seen_done.find(0, 0, shards)
        while at >= 0:
            yield at
            at = self._seen_done.find(0, at + 1, shards)

    def _claim_free(
        self, search: FreeShards, worker: str, shards: int, lease_s: float, held: Collection[int]
    ) -> Claim | None:
        while (claim := self._take_free(search, worker, lease_s, held)) is None and search.window is not None:
            search.found(self._look(search.window, shards, held))
        return claim

    def _look(self, window: int, shards: int, held: Collection[int]) -> list[int]:
        stop = min(shards, (window + 1) * LISTED_AT_ONCE)
        start = self._seen_done.find(0, window * LISTED_AT_ONCE, stop)
        if start < 0:
            return []
        self._see_done(start, stop)
        leased = set(self._indices("leases", start, stop))
        return [i for i in range(start, stop) if not self._seen_done[i] and i not in leased and i not in held]

    def _take_free(self, search: FreeShards, worker: str, lease_s: float, held: Collection[int]) -> Claim | None:
        """The next of the shards that were free when last looked at, unless another is at it by now."""
        while (shard := search.next()) is not None:
            if shard in held:
                continue
            if (claim := self._try(shard, worker, lease_s)) is not None:
                return claim
            search.give_up()
        return None

    def _try(self, shard: int, worker: str, lease_s: float) -> Claim | None:
        """Take a shard, unless another is at it or it is done."""
        if self.store.put_if_absent(self._key("leases", shard), encode(self._new_lease(worker, lease_s))):
            if not self._is_done(shard):
                return Claim(shard, _attempt())
            self.store.delete(self._key("leases", shard))
        return None

    def _is_done(self, shard: int) -> bool:
        if self._seen_done[shard] or self.store.head(self._key("commits", shard)) is not None:
            self._seen_done[shard] = 1
        return bool(self._seen_done[shard])

    def _take_over(self, worker: str, held: list[int], lease_s: float, slow_s: float, own_s: float) -> Claim | None:
        """A shard of another; of many, some are looked at. Those who look at the same time look at others."""
        slowest: tuple[float, int, Lease, str] | None = None
        for shard in held if len(held) <= _ASKED_LEASES else random.sample(held, _ASKED_LEASES):
            found = self._lease(shard)
            if found is None:
                continue
            lease, tag = found
            now = self.clock()
            if lease.until <= now or _vanished(lease):
                if self._is_done(shard):
                    self.retire(shard)
                    continue
                taken = self._new_lease(worker, lease_s, lease.crashes + 1)
                if self.store.replace_if_same(self._key("leases", shard), encode(taken), tag):
                    return Claim(shard, _attempt(), taken.crashes)
            elif lease.worker != worker and not lease.shadow:
                gain = _gain_s(lease, now, slow_s, own_s)
                if gain > 0 and (slowest is None or gain > slowest[0]):
                    slowest = (gain, shard, lease, tag)
        if slowest is None:
            return None
        _, shard, lease, tag = slowest
        if self._is_done(shard):
            self.retire(shard)
            return None
        shadowed = replace(lease, shadow=worker)
        if self.store.replace_if_same(self._key("leases", shard), encode(shadowed), tag):
            return Claim(shard, _attempt(), shadow=True)
        return None

    def renew(self, claim: Claim, worker: str, lease_s: float, due: float = 0.0) -> bool:
        """Say that the worker is still at it and when it expects to commit. False when another has committed it.

        A shadow renews the lease of whom it works beside: that one may be gone.
        """
        found = self._lease(claim.shard)
        if found is not None and worker in (found[0].worker, found[0].shadow):
            lease, tag = found
            renewed = replace(lease, until=self.clock() + lease_s, due=due if lease.worker == worker else lease.due)
            self.store.replace_if_same(self._key("leases", claim.shard), encode(renewed), tag)
            if not lease.shadow:
                return True
        return self.store.head(self._key("commits", claim.shard)) is None

    def release(self, claim: Claim, worker: str) -> None:
        """Give a shard back that is not done: not begun, or left in good order."""
        found = self._lease(claim.shard)
        if found is None:
            return
        lease, tag = found
        if lease.worker == worker:
            self.store.delete(self._key("leases", claim.shard))
        elif lease.shadow == worker:
            alone = replace(lease, shadow="")
            self.store.replace_if_same(self._key("leases", claim.shard), encode(alone), tag)

    def retire(self, shard: int) -> None:
        """The shard is committed: nobody need be at it."""
        self.store.delete(self._key("leases", shard))

    def record_death(self, worker: str) -> None:
        """Let go of everything a dead worker held, counting its death against each shard it was at."""
        shards = list(self._indices("leases"))
        for shard, found in zip(shards, self._each(self._lease, shards), strict=True):
            if found is None or found[0].worker != worker:
                continue
            lease, tag = found
            buried = replace(lease, until=0.0)
            self.store.replace_if_same(self._key("leases", shard), encode(buried), tag)

    def leases(self) -> dict[int, Lease]:
        shards = list(self._indices("leases"))
        found = zip(shards, self._each(self._lease, shards), strict=True)
        return {shard: pair[0] for shard, pair in found if pair is not None}

    def _lease(self, shard: int) -> tuple[Lease, str] | None:
        try:
            data, tag = self.store.get_tagged(self._key("leases", shard))
            return Lease(**json.loads(data)), tag
        except FileNotFoundError:
            return None

    def _new_lease(self, worker: str, lease_s: float, crashes: int = 0) -> Lease:
        now = self.clock()
        return Lease(worker, socket.gethostname(), os.getpid(), now, now + lease_s, crashes)


def process_alive(host: str, pid: int) -> bool | None:
    """Whether a process lives, where that can be known: on its own host."""
    if host != socket.gethostname():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return False


def _vanished(lease: Lease) -> bool:
    return process_alive(lease.host, lease.pid) is False


def _gain_s(lease: Lease, now: float, slow_s: float, own_s: float) -> float:
    """How much sooner a shard is done that is begun again now; not above 0 where that is not worth it."""
    if lease.due and own_s:
        return lease.due - now - _WORTH * own_s
    return now - lease.since - slow_s


def _attempt() -> str:
    return uuid.uuid4().hex[:8]
