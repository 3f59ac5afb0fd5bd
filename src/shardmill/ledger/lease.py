"""Which worker works on which shard. Leases are hints that avoid double work; they decide nothing."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_record
from shardmill.ledger.commit import Commits
from shardmill.ledger.folder import Folder
from shardmill.ledger.process import name_process, process_alive
from shardmill.ledger.record import Claim, Lease, encode
from shardmill.ledger.worker import WorkerRecords, was_told_to_stop

# When no shard is free, at most this many leases are read.
_ASKED_LEASES = 16
# A shadow that would finish only a little before the holder is not worth its work.
_WORTH = 1.25


class Leases:
    """Keeps at most one holder and one shadow per shard, for as long as they renew; none once a shard is done."""

    def __init__(self, folder: Folder, commits: Commits, workers: WorkerRecords, clock: Callable[[], float]) -> None:
        self._folder, self._store = folder, folder.store
        self._commits, self._workers, self._clock = commits, workers, clock

    def shards(self, start: int = 0, stop: int | None = None) -> Iterator[int]:
        """The shards in [start, stop) that are leased, in order."""
        return self._folder.shards("leases", start, stop)

    def read(self) -> dict[int, Lease]:
        """All leases by shard."""
        return {shard: lease for shard, (lease, _) in self._read_each(self.shards())}

    def take(self, shard: int, worker: str, lease_s: float) -> Claim | None:
        """Take a shard, unless another worker holds it or it is done."""
        if self._store.put_if_absent(self._key(shard), encode(self._new_lease(worker, lease_s))):
            if not self._commits.is_done(shard):
                return Claim(shard, _new_attempt())
            self.retire(shard)
        return None

    def take_first(self, shards: Iterable[int], worker: str, lease_s: float) -> Claim | None:
        """Take the first of some shards that can be taken."""
        return next(filter(None, (self.take(shard, worker, lease_s) for shard in shards)), None)

    def take_over(
        self, shards: Sequence[int], worker: str, lease_s: float, slow_s: float, own_s: float
    ) -> Claim | None:
        """Take one of the leased shards: one whose holder is gone, else shadow the slowest holder.

        Of many leases a random sample is read, so that workers that look at the same time read different ones.
        """
        slowest: tuple[float, int, Lease, str] | None = None
        for shard in shards if len(shards) <= _ASKED_LEASES else random.sample(shards, _ASKED_LEASES):
            found = self._read(shard)
            if found is None:
                continue
            lease, tag = found
            now = self._clock()
            if lease.until <= now or _vanished(lease):
                if self._retire_if_done(shard):
                    continue
                taken = self._new_lease(worker, lease_s, lease.crashes + (not self._is_excused(lease.worker)))
                if self._replace(shard, taken, tag):
                    return Claim(shard, _new_attempt(), taken.crashes)
            elif lease.worker != worker and not lease.shadow:
                gain = _gain_s(lease, now, slow_s, own_s)
                if gain > 0 and (slowest is None or gain > slowest[0]):
                    slowest = (gain, shard, lease, tag)
        if slowest is None:
            return None
        _, shard, lease, tag = slowest
        if not self._retire_if_done(shard) and self._replace(shard, replace(lease, shadow=worker), tag):
            return Claim(shard, _new_attempt(), shadow=True)
        return None

    def has_abandoned(self, shards: Iterable[int]) -> bool:
        """Whether the holder of one of these shards is gone."""
        now = self._clock()
        return any(lease.until <= now or _vanished(lease) for _, (lease, _) in self._read_each(shards))

    def renew(self, claim: Claim, worker: str, lease_s: float, due: float = 0.0) -> bool:
        """Extend the lease and record when the worker expects to commit. False if another has committed the shard.

        A shadow renews the holder's lease, since the holder may be gone.
        """
        found = self._read(claim.shard)
        if found is not None and worker in (found[0].worker, found[0].shadow):
            lease, tag = found
            due = due if lease.worker == worker else lease.due
            self._replace(claim.shard, replace(lease, until=self._clock() + lease_s, due=due), tag)
            if not lease.shadow:
                return True
        return not self._commits.is_done(claim.shard)

    def hold(self, claim: Claim, worker: str, lease_s: float, *, forgiven: bool = False) -> bool:
        """Extend the lease of a shard that its holder alone may work on; False if the worker does not hold it any more.

        `forgiven` are the crashes of earlier holders: the work has got further since.
        """
        while (found := self._read(claim.shard)) is not None and found[0].worker == worker:
            lease, tag = found
            crashes = 0 if forgiven else lease.crashes
            if self._replace(claim.shard, replace(lease, until=self._clock() + lease_s, crashes=crashes), tag):
                return True
        return False

    def release(self, claim: Claim, worker: str) -> None:
        """Give back a shard that is not done: not begun, or stopped cleanly."""
        found = self._read(claim.shard)
        if found is None:
            return
        lease, tag = found
        if lease.worker == worker:
            self._store.delete(self._key(claim.shard))
        elif lease.shadow == worker:
            self._replace(claim.shard, replace(lease, shadow=""), tag)

    def retire(self, shard: int) -> None:
        """Delete the lease of a committed shard."""
        self._store.delete(self._key(shard))

    def record_death(self, worker: str) -> None:
        """End all leases of a dead worker; its crash then counts against each shard it held.

        Its last heartbeat names its shards. If it holds none of those, or left no heartbeat, all leases are read.
        """
        beat = self._workers.find(worker) or {}
        if not self._end(map(int, beat.get("open", ())), worker):
            self._end(self.shards(), worker)

    def _end(self, shards: Iterable[int], worker: str) -> int:
        """End the leases that a worker has on these shards, and count them."""
        found = [(shard, *seen) for shard, seen in self._read_each(shards) if seen[0].worker == worker]
        for shard, lease, tag in found:
            self._replace(shard, replace(lease, until=0.0), tag)
        return len(found)

    def excuse(self, worker: str) -> None:
        """Give back all leases of a worker that vanished for no fault of its shards, such as by preemption."""
        for shard, (lease, _) in self._read_each(self.shards()):
            if lease.worker == worker:
                self._store.delete(self._key(shard))

    def _is_excused(self, worker: str) -> bool:
        """Whether a holder ended because it was told to, too late to give its leases back."""
        record = self._workers.find(worker)
        return record is not None and was_told_to_stop(record)

    def _retire_if_done(self, shard: int) -> bool:
        done = self._commits.is_done(shard)
        if done:
            self.retire(shard)
        return done

    def _key(self, shard: int) -> str:
        return self._folder.key("leases", shard)

    def _read(self, shard: int) -> tuple[Lease, str] | None:
        try:
            data, tag = self._store.get_tagged(self._key(shard))
        except FileNotFoundError:
            return None
        try:
            return read_record(Lease, data, self._key(shard)), tag
        except CorruptState:
            # A damaged lease has run out: it is a hint, and must not keep a shard for ever.
            return Lease("", "", 0, 0.0, 0.0), tag

    def _read_each(self, shards: Iterable[int]) -> Iterator[tuple[int, tuple[Lease, str]]]:
        asked = list(shards)
        for shard, found in zip(asked, self._folder.ask_each(self._read, asked), strict=True):
            if found is not None:
                yield shard, found

    def _replace(self, shard: int, lease: Lease, tag: str) -> bool:
        return self._store.replace_if_same(self._key(shard), encode(lease), tag)

    def _new_lease(self, worker: str, lease_s: float, crashes: int = 0) -> Lease:
        now = self._clock()
        return Lease(worker, name_process(), os.getpid(), now, now + lease_s, crashes)


def _vanished(lease: Lease) -> bool:
    return process_alive(lease.host, lease.pid) is False


def _gain_s(lease: Lease, now: float, slow_s: float, own_s: float) -> float:
    """How many seconds a shadow that begins now would gain; 0 or less if it is not worth it."""
    if lease.due and own_s:
        return lease.due - now - _WORTH * own_s
    return now - lease.since - slow_s


def _new_attempt() -> str:
    return uuid.uuid4().hex[:8]
