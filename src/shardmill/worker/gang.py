"""A worker's place in a gang: one process of several that work on one item together."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardmill.core.devices import own_address
from shardmill.core.errors import DeviceLost
from shardmill.ledger import Gang, Ledger, StoredCheckpoint
from shardmill.tasks.context import Group, LongTask, Stopped
from shardmill.worker.pulse import quietly

_LOOK_EVERY_S = 0.2
# Who is there says so until half a lease from now, and looks at the others as often: a loss is seen within a lease.
_UNTIL, _LOOKS = 0.5, 8
# After a broken step they look this often: a process of the same machine is then seen to be gone within a second.
_LOOK_AGAIN_S = 1.0
# Who comes while others work waits this share of a lease for more to come, so that all join at once.
_GATHERS = 0.25
# A helper that fails so often, without a newer checkpoint of the item, ends its worker: the others would wait for it.
_FAILURES = 3


class GangSeat:
    """Used by one item at a time. The worker that holds the item's shard `leads`; the others follow.

    A thread says that the worker is there, and watches whether those it works with still are.
    """

    def __init__(
        self,
        ledger: Ledger,
        shard: int,
        row: int,
        worker: str,
        *,
        leads: bool,
        lease_s: float,
        least: int,
        most: int,
        stopped: Callable[[], bool],
        on_wait: Callable[[], None] = lambda: None,
        on_further: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledger, self._gangs = ledger, ledger.gangs
        self._shard, self._row, self._worker = shard, row, worker
        self._leads, self._lease_s, self._least, self._most = leads, lease_s, least, most
        self._stopped, self._on_wait, self._on_further = stopped, on_wait, on_further
        self._since = ledger.clock()
        self._now: Gang | None = None
        self._last = 0
        self._lost = threading.Event()
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._stirred = threading.Event()
        self._newcomers_since: float | None = None
        self._step: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def place(self) -> dict[str, int]:
        """What a heartbeat says of it; empty between two generations."""
        gang = self._now
        if gang is None:
            return {}
        rank = gang.members.index(self._worker)
        return {"shard": gang.shard, "rank": rank, "size": len(gang.members), "generation": gang.generation}

    @contextmanager
    def join(self) -> Iterator[Group]:
        """Wait until enough workers are there, and work with them until the block ends."""
        self._begin()
        listener = None
        try:
            if self._leads:
                listener = _listen()
                gang = self._form(f"{own_address()}:{listener.getsockname()[1]}")
            else:
                gang = self._follow()
            self._lost.clear()
            self._changed.clear()
            self._newcomers_since = None
            self._now, self._last = gang, gang.generation
            yield Group(
                gang.members.index(self._worker),
                len(gang.members),
                gang.address,
                gang.generation,
                self._lease_s,
                lambda: not self._changed.is_set(),
                self._wait_lost,
                listener,
            )
        finally:
            self._now = None
            if listener is not None:
                listener.close()

    def close(self) -> None:
        """Leave the gang; the leader ends it."""
        if self._thread is None:
            return
        self._ended.set()
        self._stirred.set()
        self._thread.join()
        quietly(self._gangs.withdraw, self._shard, self._worker)
        if self._leads:
            quietly(self._gangs.close, self._shard, self._worker)

    def _begin(self) -> None:
        if self._thread is not None:
            return
        if self._leads:
            self._gangs.call(self._shard, self._row, self._worker)
        self._announce()
        self._thread = threading.Thread(target=self._watch, name="gang", daemon=True)
        self._thread.start()

    def _form(self, address: str) -> Gang:
        while not self._stopped():
            others = [name for name in self._gangs.present(self._shard) if name != self._worker]
            if 1 + len(others) >= self._least:
                gang = self._gangs.form(self._shard, self._worker, address, [self._worker, *others][: self._most])
                if gang is None:
                    break
                return gang
            self._on_wait()
            time.sleep(_LOOK_EVERY_S)
        raise Stopped

    def _follow(self) -> Gang:
        while not self._stopped():
            gang = self._gangs.find(self._shard)
            if gang is None or gang.over:
                break
            if gang.generation > self._last and self._worker in gang.members:
                return gang
            time.sleep(_LOOK_EVERY_S)
        raise Stopped

    def _wait_lost(self, seconds: float) -> bool:
        """Whether somebody is gone; the thread looks at once, and often, as a step has just failed."""
        until = time.monotonic() + seconds
        while not self._lost.is_set() and (left := until - time.monotonic()) > 0:
            self._stirred.set()
            self._lost.wait(min(_LOOK_AGAIN_S, left))
        return self._lost.is_set()

    # the watching thread

    def _announce(self) -> None:
        self._gangs.announce(self._shard, self._worker, self._since, self._lease_s * _UNTIL)

    def _watch(self) -> None:
        while True:
            self._stirred.wait(self._lease_s / _LOOKS)
            self._stirred.clear()
            if self._ended.is_set():
                return
            quietly(self._announce)
            quietly(self._look)

    def _look(self) -> None:
        """See whether the gang is still the one that this worker belongs to."""
        gang = self._now
        if gang is None:
            return
        seen, present = self._gangs.find(self._shard), set(self._gangs.present(self._shard))
        needed = set(gang.members) if self._leads else {gang.leader}
        if seen is None or seen.generation != gang.generation or seen.over or not needed <= present:
            self._lost.set()
            self._changed.set()
        elif self._leads and self._are_others_wanted(gang, present - set(gang.members)):
            self._changed.set()
        if not self._leads:
            self._look_for_checkpoint()

    def _are_others_wanted(self, gang: Gang, newcomers: set[str]) -> bool:
        if not newcomers or len(gang.members) >= self._most:
            self._newcomers_since = None
            return False
        now = time.monotonic()
        self._newcomers_since = self._newcomers_since or now
        return now - self._newcomers_since >= self._lease_s * _GATHERS

    def _look_for_checkpoint(self) -> None:
        """A newer checkpoint is progress of all who worked for it."""
        found = self._ledger.checkpoints.find(self._shard, self._row)
        step = found.step if found is not None else None
        if step is not None and self._step is not None and step > self._step:
            self._on_further()
        self._step = step if step is not None else self._step or 0


class MemberContext:
    """The context of a worker that helps another with its item: it reads checkpoints, and leaves the rest to rank 0."""

    def __init__(self, ledger: Ledger, shard: int, row: int, seat: GangSeat, stopped: Callable[[], bool]) -> None:
        self._ledger, self._shard, self._row, self._seat, self._stopped = ledger, shard, row, seat, stopped

    @property
    def shard(self) -> int:
        return self._shard

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        pass

    def checkpoint(self) -> StoredCheckpoint | None:
        return self._ledger.checkpoints.find_whole(self._shard, self._row)

    def keep(self, step: int, files: Mapping[str, Path | bytes]) -> None:
        pass

    def publish(self, folder: Path) -> None:
        pass

    def should_stop(self) -> bool:
        return self._stopped()

    def join(self) -> Any:
        return self._seat.join()


class Gangs:
    """The gangs that a worker leads and helps: one at a time, on its main thread."""

    def __init__(
        self,
        ledger: Ledger,
        worker: str,
        *,
        lease_s: float,
        least: int,
        most: int,
        read_item: Callable[[int, int], Any],
        on_progress: Callable[[], None],
        on_further: Callable[[], None],
    ) -> None:
        self._ledger, self._worker = ledger, worker
        self._lease_s, self._least, self._most = lease_s, least, most
        self._read_item, self._on_progress, self._on_further = read_item, on_progress, on_further
        self._seat: GangSeat | None = None
        self._wait_until = 0.0
        self._failed_at, self._failures = (-1, 0, 0), 0

    def place(self) -> dict[str, int]:
        """What a heartbeat says of the gang that the worker belongs to now; empty if there is none."""
        seat = self._seat
        return seat.place if seat is not None else {}

    def lead(self, shard: int, row: int, stopped: Callable[[], bool]) -> GangSeat:
        self._seat = self._make_seat(shard, row, stopped, leads=True)
        return self._seat

    def help(self, task: LongTask, stopped: Callable[[], bool]) -> None:
        """Work on an item of another worker for as long as that one goes on, if one is open; the row is its own."""
        if time.monotonic() < self._wait_until:
            return
        gang = next(self._ledger.gangs.list_open(), None)
        if gang is None or gang.leader == self._worker or self._ledger.commits.is_done(gang.shard):
            return
        seat = self._seat = self._make_seat(gang.shard, gang.row, stopped, leads=False)
        try:
            task.work(
                self._read_item(gang.shard, gang.row),
                MemberContext(self._ledger, gang.shard, gang.row, seat, stopped),
            )
        except Stopped:
            pass
        except (DeviceLost, MemoryError):
            raise
        except Exception as error:
            # What is wrong with the item, its own worker says, unless it happens here alone.
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self._wait_until = time.monotonic() + self._lease_s * _GATHERS
            if self._fails_again(gang):
                raise
        finally:
            seat.close()
            self._seat = None

    def _fails_again(self, gang: Gang) -> bool:
        """Whether this worker failed too often at one item that got no further meanwhile."""
        kept = self._ledger.checkpoints.find(gang.shard, gang.row)
        place = (gang.shard, gang.row, kept.step if kept is not None else 0)
        self._failures = self._failures + 1 if place == self._failed_at else 1
        self._failed_at = place
        return self._failures >= _FAILURES

    def _make_seat(self, shard: int, row: int, stopped: Callable[[], bool], *, leads: bool) -> GangSeat:
        return GangSeat(
            *(self._ledger, shard, row, self._worker),
            leads=leads,
            lease_s=self._lease_s,
            least=self._least,
            most=self._most,
            stopped=stopped,
            on_wait=self._on_progress,
            on_further=self._on_further,
        )


def _listen() -> socket.socket:
    """A socket for the others to meet at, on any free port."""
    listener = socket.create_server(("", 0))
    listener.set_inheritable(False)
    return listener
