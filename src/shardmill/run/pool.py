"""One worker for all runs in a folder: it serves wanted runs by priority, and ends when nothing can be claimed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from shardmill.core import permission
from shardmill.core.console import say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import Cure, Preempted, ShardmillError, UsageError
from shardmill.engines.process import name_worker
from shardmill.ledger import WANTED, Editions, Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import Execution, make_execution
from shardmill.plugins import check_packages
from shardmill.run.loaded import LoadedTask
from shardmill.store import list_folders, open_store
from shardmill.worker import Worker
from shardmill.worker.process import work as work_on
from shardmill.worker.signals import Signals, Stoppable
from shardmill.worker.steps import finish

# A worker in the middle of a run looks this often for one of higher priority; an idle one, for any.
_LOOK_EVERY_S = 15.0
_IDLE_S = 5.0
_ASKED_AT_ONCE = 8
_Stopped = TypeVar("_Stopped", bound=Stoppable)


@dataclass(frozen=True, slots=True)
class ServedRuns:
    """The result of `serve`: the runs that the worker worked on, in that order."""

    folder: str
    runs: tuple[str, ...]

    def describe(self) -> str:
        """The outcome in a line."""
        return f"Nothing is left to claim in {self.folder}; served: {', '.join(self.runs) or 'nothing'}."

    def to_json(self) -> dict[str, object]:
        return {"folder": self.folder, "runs": list(self.runs)}


@dataclass(frozen=True, slots=True)
class _Offer:
    """A wanted run. Of two with the same priority, the one that was wanted first is served first."""

    place: str
    ledger: Ledger
    plan: Plan
    execution: Execution
    since: float

    @property
    def rank(self) -> tuple[int, float, str]:
        return -self.execution.priority, self.since, self.place

    def has_shards(self) -> bool:
        return self.ledger.has_free(len(self.plan.shards), self.plan.work.wave)


def is_pool(place: str | os.PathLike[str]) -> bool:
    """Whether a place is no run itself, so that it can only be a folder of runs."""
    return open_store(place).head("plan.json") is None


def serve(
    folder: str | os.PathLike[str],
    *,
    device: str | None = None,
    allow_code: bool = False,
    forever: bool = False,
    quiet: bool = True,
    own_process: bool = False,
) -> ServedRuns:
    """Be a worker for all wanted runs in a folder, the highest priority first, until nothing can be claimed.

    With `forever` it then waits for the next run. It waits for no other worker: what others hold is theirs, and the
    last of them does what follows the last shard. A run that cannot be served here is said and left out; its error is
    raised at the end if the run is still wanted.
    """
    pool = _Pool(open_store(folder).url, device, allow_code, quiet, Signals() if own_process else None)
    if not forever and not pool.look():
        pool.check()
        if not pool.has_runs:
            raise UsageError(
                f"{pool.folder}: no run found here.", hint="Give a run, or the folder that the runs are in."
            )
    while True:
        while pool.serve_one():
            continue
        if not forever:
            pool.check()
            return ServedRuns(pool.folder, tuple(pool.served))
        time.sleep(_IDLE_S)


class _Pool:
    def __init__(self, folder: str, device: str | None, allow_code: bool, quiet: bool, signals: Signals | None) -> None:
        self.folder, self.served = folder, dict[str, None]()
        self.has_runs = False
        self._device, self._allow_code, self._quiet, self._signals = device, allow_code, quiet, signals
        self._loaded = LoadedTask()
        self._known: dict[str, tuple[Ledger, Plan]] = {}
        self._left_out: dict[str, ShardmillError] = {}

    def look(self) -> list[_Offer]:
        """The wanted runs that can be served here, in the order in which they are served."""
        try:
            places = list_folders(self.folder)
        except FileNotFoundError:
            raise UsageError(f"{self.folder}: no such folder.", hint="Give the folder that the runs are in.") from None
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as asking:
            found = [offer for offers in asking.map(self._find_all, places) for offer in offers]
        return sorted((offer for offer in found if offer.place not in self._left_out), key=lambda offer: offer.rank)

    def _find_all(self, place: str) -> list[_Offer]:
        """A run, and the edition of it that is being made: both may be wanted."""
        offers = [self._find(place)]
        if place in self._known:
            editions = Editions(place)
            if (newest := editions.highest()) > editions.current():
                offers.append(self._find(editions.place(newest)))
        return [offer for offer in offers if offer is not None]

    def _find(self, place: str) -> _Offer | None:
        """A run, if it is one and is wanted. Its plan is read only once: it may name a million shards."""
        try:
            if place not in self._known:
                ledger = Ledger(place)
                plan = ledger.find_plan()
                if plan is None:
                    return None
                self._known[place] = ledger, plan
            self.has_runs = True
            ledger, plan = self._known[place]
            now = ledger.state.look()
            if now.generation != plan.generation:
                # Started over: the next look reads the new plan.
                del self._known[place]
                return None
            if now.state != WANTED:
                return None
            return _Offer(place, ledger, plan, make_execution(ledger.execution()), now.at)
        except ShardmillError as error:
            self._leave_out(place, error)
            return None

    def serve_one(self) -> bool:
        """Work on the first run that has something to do; False if none has."""
        return any(self._serve(offer) for offer in self.look())

    def _serve(self, offer: _Offer) -> bool:
        try:
            done = self._serve_run(offer)
        except Preempted:
            if self._signals is not None and self._signals.heard:
                raise
            # The run was stopped or started over.
            return False
        except ShardmillError as error:
            if error.cure is Cure.HERE:
                raise
            self._leave_out(offer.place, error)
            return False
        if done:
            self.served.setdefault(offer.place)
        return done

    def _serve_run(self, offer: _Offer) -> bool:
        """Work on a run until nothing in it can be claimed; True if anything was done."""
        plan, execution = offer.plan, offer.execution
        if self._allow_code:
            permission.allow(plan.code)
        permission.check(plan.code)
        check_packages(plan.packages)
        if offer.ledger.is_over(len(plan.shards)):
            with self._heeding(_Finishing()) as finishing:
                name, stop = name_worker(os.getpid()), finishing.told_to_stop
                return finish(offer.ledger, plan, execution, name, stop=stop, waits=False, quiet=self._quiet)
        if not offer.has_shards():
            return False
        kind = self._device or execution.device.replace("all", "auto")
        task, picked = self._loaded.take(plan, execution, kind)
        on_stuck = (lambda: os._exit(Cure.HERE)) if self._signals is not None else None
        steps = set[str]()
        worker = Worker(
            # The pool looks at its own ledger meanwhile, from another thread.
            Ledger(offer.place),
            device=picked,
            slot=random.random(),
            on_step=lambda step, shard: steps.add(step),
            on_stuck=on_stuck,
            leaves=_Outranked(self, offer),
            task=task,
        )
        if not self._quiet:
            say(f"Serving {offer.place}.")
        try:
            with self._heeding(worker):
                done = work_on(worker, alone=True, quiet=self._quiet)
        except BaseException:
            self._loaded.close()
            raise
        return done or "committed" in steps

    @contextmanager
    def _heeding(self, worker: _Stopped) -> Iterator[_Stopped]:
        """A signal stops this worker in good order, and ends the process once it has stopped."""
        if self._signals is None:
            yield worker
            return
        self._signals.hand_over(worker)
        try:
            yield worker
        finally:
            self._signals.take_back()
            if self._signals.interrupted:
                raise KeyboardInterrupt
            if self._signals.heard:
                raise Preempted(
                    "The worker was told to stop.", hint=f"Go on with: {shell_command('work', self.folder)}"
                )

    def check(self) -> None:
        """Raise why a run was left out that is still wanted."""
        for place, error in self._left_out.items():
            known = self._known.get(place)
            if known is None or known[0].state.look().state == WANTED:
                raise error

    def _leave_out(self, place: str, error: ShardmillError) -> None:
        if place not in self._left_out and not self._quiet:
            say(f"{place} is left out: {error}")
        self._left_out[place] = error


class _Finishing:
    """What follows the last shard, as something that a signal stops."""

    def __init__(self) -> None:
        self.told_to_stop = threading.Event()

    def stop(self) -> None:
        self.told_to_stop.set()


class _Outranked:
    """Says now and then whether a run of higher priority has a shard to claim."""

    def __init__(self, pool: _Pool, offer: _Offer) -> None:
        self._pool, self._offer = pool, offer
        self._at = time.monotonic()

    def __call__(self) -> bool:
        if time.monotonic() - self._at < _LOOK_EVERY_S:
            return False
        self._at = time.monotonic()
        own = self._offer.execution.priority
        return any(each.execution.priority > own and each.has_shards() for each in self._pool.look())
