"""One run in a simulated world where things go wrong, with real parents, engine, workers, ledger and sink; its proof.

The worker, its threads and the engine run as they are. Simulated are the clock, the processes and the store.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from campaigns.simulated import Turns
from campaigns.simulated_lake import KIND, Lake
from campaigns.simulated_os import Machines, NoBar, Nowhere, Process, SeededUuid, SerialPool
from campaigns.simulated_source import is_bad, memory_folder, planned
from campaigns.simulated_stores import Line, ObjectServer, SimulatedDisk, draw_weather
from shardmill import run
from shardmill.core.console import Bar
from shardmill.core.devices import Device
from shardmill.core.errors import (
    WORKER_FAILED,
    Cure,
    Preempted,
    ShardmillError,
    StaleResume,
    TooManyErrors,
    WorkerFailed,
)
from shardmill.ledger import Editions, Ledger, name_process, process_alive
from shardmill.ledger.editions import open_current
from shardmill.plan import Plan
from shardmill.plan.spec import Spec
from shardmill.results import verify
from shardmill.run import running as _running
from shardmill.run.costs.rates import expect, learn
from shardmill.run.planner import devices_for, make_plan
from shardmill.store import locate, open_store
from shardmill.testing import FakeTask, fake_vector
from shardmill.worker import Worker
from shardmill.worker.process import work
from shardmill.worker.writer import Writer

# How long things go wrong, and how long the run may take to end after that.
TROUBLE_S, CALM_S = 60.0, 3000.0
_TRIES = 6
# How long workers take to fall asleep.
_DROWSY_S = 2.0
# Where clocks, threads and processes are simulated.
_ENGINE = ("engines.local", "engines.process", "engines.deaths", "engines.stuck")
_NAMES = ("worker", "ledger", "sinks", "store", "run", "results.delivery", "testing", *_ENGINE)
ROOMS = tuple(f"shardmill.{name}" for name in _NAMES)


@dataclass(slots=True)
class Outcome:
    """What came of a seed: nothing wrong if `faults` is empty."""

    seed: int
    faults: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    requests: int = 0
    digest: str = ""
    counts: Counter[str] = field(default_factory=Counter)


class World:
    rooms: tuple[str, ...] = ROOMS

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.chance = chance = random.Random(f"faults {seed}")
        self.outcome = Outcome(seed)
        self.turns = Turns()
        self.machines = Machines(self.turns, self._note if traced else self._count)
        self.weather = draw_weather(chance)
        self.line = Line(self.machines, self.weather, random.Random(f"line {seed}"))
        self.machines.skew_s = {host: chance.choice((0.0, 0.0, chance.uniform(-40, 40))) for host in "ab"}
        self.folder: Path | None = None
        if chance.random() < 0.3:
            self.folder = Path(tempfile.mkdtemp(prefix="faults-", dir=memory_folder()))
            self.server: Any = SimulatedDisk(self.folder / "run", self.line, self.machines)
            self.store = self.server
        else:
            self.server = ObjectServer(self.line, random.Random(f"order {seed}"))
            self.store = self.server.store()
        self.workers = chance.choice((1, 2, 2, 3))
        self.dims = 4
        self.poison = chance.random() < 0.1
        self.lake, self.delivers, self.addresses = Lake(self.line), random.Random(f"lake {seed}").random() < 0.5, 0

    def close(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _count(self, process: Process | None, what: str) -> None:
        self.outcome.counts["processes killed"] += what.startswith(("SIGKILL", "  dies"))

    def _note(self, process: Process | None, what: str) -> None:
        self._count(process, what)
        self.outcome.trace.append(f"{self.turns.now:9.3f} {process.name if process else 'user':12} {what}")

    # what is replaced

    @property
    def url(self) -> str:
        return str(self.store.url)

    def open_store(self, place: Any) -> Any:
        """The simulated store, if it is the run's folder or one in it."""
        place = str(place)
        if place != self.url and not place.startswith(f"{self.url}/"):
            return open_store(place)
        folder = place.removeprefix(self.url).strip("/")
        return self.server.store(f"{folder}/" if folder else "")

    def locate(self, place: Any) -> Any:
        folder, _, name = str(place).rpartition("/")
        return (self.open_store(folder), name) if folder.startswith(self.url) else locate(place)

    def ledger(self, place: Any) -> Ledger:
        return Ledger(open_current(place) if isinstance(place, str) else place, self.machines.time)

    def patches(self) -> list[tuple[Any, str, Any]]:
        machines = self.machines
        of: list[tuple[Any, Any]] = [
            (time, machines.clocks),
            (threading, machines.threading),
            (queue, machines.queue),
            (uuid, SeededUuid),
            (subprocess, machines.subprocess(self._work)),
            (name_process, machines.name_process),
            (process_alive, machines.process_alive),
            (make_plan, self._plan),
            (devices_for, lambda spec, **_: [Device("cpu", "cpu", 1)] * self.workers),
            (expect, lambda *_: None),
            (learn, lambda *_: None),
            (Bar, NoBar),
            (ThreadPoolExecutor, SerialPool),
            (open_store, self.open_store),
            (locate, self.locate),
            (Editions, lambda place: Editions(place, machines.time)),
        ]
        found: list[tuple[Any, str, Any]] = []
        for module in [module for name, module in sys.modules.items() if name.startswith(self.rooms)]:
            own = of if "store" in module.__name__ else [*of, (os, machines.os)]
            own = own if "ledger" in module.__name__ else [*own, (Ledger, self.ledger)]
            found += [(module, name, new) for name, value in vars(module).items() for old, new in own if value is old]
        named = {
            # Fewer looks: each is a request or a change of threads.
            "_LOOK_EVERY_S": (2.0, "worker.channel worker.shards"),
            "_POLL_S": (0.5, "run.running"),
            "_SHOW_EVERY_S": (15.0, "run.running"),
            # Roll-ups of two shards instead of a thousand.
            "SEALED_AT_ONCE": (2, "ledger.segment"),
            # Small blocks, whose rows are kept.
            "BATCH_ROWS": (2, "sources.batches"),
            "KEEP_EVERY_S": (0.4, "sinks.keeping"),
        }
        found += [(f"shardmill.{m}", name, value) for name, (value, where) in named.items() for m in where.split()]
        # Every shard is a lot, and goes into the simulated lake.
        found += [
            ("shardmill.results.delivery", "_LOT_BYTES", 1),
            ("shardmill.results.delivery", "open_delivery", self.lake.open),
            ("shardmill.results.delivered", "open_delivery", self.lake.open),
            ("shardmill.run.planning", "find_delivery", lambda address: KIND),
        ]
        # Few failed rows are too many, for a process that does not know that all may fail.
        found.append((FakeTask, "few_rows", 10))
        # Python 3.11 locks a cached property for all instances, of whichever process.
        locked = [value for value in vars(Writer).values() if isinstance(value, cached_property)]
        found += [(value, "lock", contextlib.nullcontext()) for value in locked if hasattr(value, "lock")]
        return found + self.server.patches()

    def _plan(self, spec: Spec, devices: Any, **_: Any) -> Plan:
        return planned(spec.work.params["dims"], self.poison)[1]

    # processes

    def _work(self, process: Process, place: str, env: dict[str, str]) -> int:
        """The main function of a worker, as in `worker/__main__.py`."""
        with self._explained(process) as end:
            worker = Worker(
                self.ledger(place),
                device=Device("cpu", "cpu", 1),
                name=env["SHARDMILL_WORKER"],
                slot=float(env["SHARDMILL_SLOT"]),
                parent=int(env["SHARDMILL_PARENT"]),
                on_stuck=lambda: process.end(Cure.HERE),
            )
            process.on_term = worker.stop
            return 0 if work(worker) else 75
        return end[0]

    def command(self, host: str, name: str, call: Callable[[], object]) -> Process:
        """Start what a user types as a process."""
        process = self.machines.process(host, name)

        def main() -> int:
            with self._explained(process) as end:
                call()
                return 0
            return end[0]

        return process.start(main)

    @contextlib.contextmanager
    def _explained(self, process: Process) -> Iterator[list[int]]:
        end = [1]
        try:
            yield end
        except ShardmillError as error:
            self.machines.note(process, f"  {type(error).__name__}: {error.message[:200]}")
            said = {"message": error.message, "hint": error.hint, "cure": error.cure.name}
            process.lines.append(WORKER_FAILED + json.dumps(said))
            self.outcome.counts[type(error).__name__] += 1
            if isinstance(error, TooManyErrors):
                self.outcome.faults.append(f"{process.name} obeys another limit of failed rows: {error.message}")
            if process.name.startswith("worker") and isinstance(error, WorkerFailed) and error.cure is Cure.HERE:
                self.outcome.faults.append(f"{process.name} does not believe its own rows: {error.message}")
            mild = isinstance(error, Preempted) or not process.name.startswith("worker")
            end[0] = error.exit_status if mild else int(error.cure)
            process.error = error
        except Exception as error:
            self.machines.note(process, "".join(traceback.format_exception(error)))
            self.outcome.faults.append(f"{process.name} ends with a traceback: {type(error).__name__}: {error}")
            process.lines += traceback.format_exc().splitlines()
            process.error = error

    def start(self, host: str, *, fresh: bool = False) -> Process:
        spec = planned(self.dims, self.poison, self.workers)[0]
        if self.delivers:
            # A table with rows of the run before it was started over is refused.
            self.addresses += fresh
            into = {"into": (f"simulated://lake/{self.addresses}",)}
            spec = spec.model_copy(update={"execution": spec.execution.model_copy(update=into)})
        return self.command(host, "fresh" if fresh else "start", lambda: _running.start(spec, self.url, fresh=fresh))

    def _start_over(self, host: str) -> Process:
        """As `start`, with --fresh and often with other parameters."""
        if self.chance.random() < 0.7:
            self.dims = 10 - self.dims
        return self.start(host, fresh=True)

    # the story

    def tell(self) -> None:
        """A user starts the run and repeats that until it is done, while others meddle; then all is calm."""
        for host in "ab"[: self.chance.choice((1, 1, 2))]:
            self.turns.spawn(lambda host=host: self._use(host))
        self.turns.spawn(self._meddle)

    def _use(self, host: str) -> None:
        chance, turns = self.chance, self.turns
        turns.pause(chance.uniform(0, 20) if host == "b" else 0.0)
        killed = False
        while turns.now < TROUBLE_S:
            if chance.random() < (0.5 if killed else 0.2):
                process = self.command(host, "resume", lambda: _running.resume(self.url))
            elif turns.now > 5 and chance.random() < 0.25:
                process = self._start_over(host)
            else:
                process = self.start(host)
            if chance.random() < 0.3:
                process.writes_left = chance.randrange(3)
            if chance.random() < 0.5:
                self._wait_for_work(process)
                process.ended.wait(chance.uniform(0, 8))
            else:
                process.ended.wait()
            if process.status is None:
                asleep = chance.random() < 0.5
                if asleep:
                    self._freeze_all()
                    turns.pause(turns.now + _DROWSY_S)
                if process.status is None:
                    process.signal(signal.SIGKILL)
                if asleep:
                    turns.pause(turns.now + 31.0)
                    process = self._start_over(host)
                    process.ended.wait(chance.uniform(1, 20))
            killed = process.status is not None and process.status < 0
            if process.status == 0 and chance.random() < 0.7:
                return
            turns.pause(turns.now + chance.expovariate(0.3))

    def _wait_for_work(self, parent: Process) -> None:
        """Wait until a command has workers, or is over, or has taken long enough."""
        until = self.turns.now + 30.0
        while parent.status is None and self.turns.now < until and not any(w.parent is parent for w in self._workers()):
            self.turns.pause(self.turns.now + 0.5)

    def _freeze_all(self) -> None:
        """All workers look dead for a while, long enough for a new start to be allowed; some sleep before a write."""
        for worker in self._workers():
            worker.drowsy_until = self.turns.now + _DROWSY_S + self.chance.uniform(30, 45)
            if self.chance.random() < 0.5:
                worker.frozen_until = worker.drowsy_until
            self.machines.note(worker, "  frozen")

    def _workers(self) -> list[Process]:
        return [p for p in self.machines.living() if p.name.startswith("worker")]

    def _meddle(self) -> None:
        chance, turns = self.chance, self.turns
        stops, rough = chance.random() < 0.3, chance.choice((0.02, 0.1, 0.3))
        while turns.now < TROUBLE_S:
            turns.pause(turns.now + chance.expovariate(rough))
            workers = self._workers()
            if stops and chance.random() < 0.1:
                self.command("a", "stop", lambda: _running.stop(self.url))
            elif workers:
                victim = chance.choice(workers)
                what = chance.choice(("kill", "kill", "term", "freeze"))
                if what == "freeze":
                    victim.frozen_until = turns.now + chance.uniform(1, 120)
                    self.machines.note(victim, "  frozen")
                else:
                    victim.signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
        self.weather.calm_down()
        self._finish()

    def _finish(self) -> None:
        """The weather is good: the same command again completes the run, whatever was left."""
        self._wait_for_all()
        fresh = False
        for _ in range(_TRIES):
            process = self.start("a", fresh=fresh)
            process.ended.wait(CALM_S)
            if process.status is None:
                self.outcome.faults.append("the run hangs")
                break
            if process.status == 0:
                break
            fresh = fresh or isinstance(process.error, StaleResume)
            # The last heartbeat of a dead worker is believed for a while, for longer where clocks differ.
            self.turns.pause(self.turns.now + 30.0)
        else:
            self.outcome.faults.append(f"the run cannot be completed: {process.error}")
        self._wait_for_all()
        for left in self.machines.living():
            self.outcome.faults.append(f"{left.name} never ends")
            left.end(-9)

    def _wait_for_all(self) -> None:
        until = self.turns.now + CALM_S
        while self.machines.living() and self.turns.now < until:
            self.turns.pause(self.turns.now + 5.0)

    # the proof

    def prove(self) -> None:
        faults = self.outcome.faults
        faults += self.line.violations
        ledger = self.ledger(self.url)
        plan = ledger.plan()
        _, _, rows = planned(plan.work.params["dims"], self.poison)
        report = verify.verify(ledger, plan, sample=0, quiet=True)
        faults += [f"verify: {check.name}: {check.seen}" for check in report.checks if not check.ok]
        if faults:
            return
        found = object.__new__(run.Run)
        found.ledger, found.plan = ledger, plan
        self._prove_rows(found, rows, plan.work.params["dims"])
        if self.delivers:
            self._prove_delivery(ledger, rows)
        ledger.sweep()
        commits = ledger.commits.read()
        kept = {key for s, c in commits.items() for key in (ledger.commits.key(s), c.part, c.errors_file) if key}
        there = {e.key for name in ("commits/", "parts/", "errors/", "leases/", "kept/") for e in self.store.list(name)}
        if there != kept:
            faults.append(f"after a sweep the folder has {sorted(there - kept)} and lacks {sorted(kept - there)}")

    def _prove_delivery(self, ledger: Ledger, rows: list[dict[str, str]]) -> None:
        (address,) = ledger.execution()["into"]
        there, wanted = self.lake.ids(address), Counter(row["id"] for row in rows)
        if there != wanted:
            self.outcome.faults.append(
                f"{address} lacks {dict(wanted - there)} and has too much: {dict(there - wanted)}"
            )
        self.outcome.counts["delivered"] += 1

    def _prove_rows(self, found: run.Run, rows: list[dict[str, str]], dims: int) -> None:
        table = found.table()
        if table.column("id").to_pylist() != [row["id"] for row in rows]:
            self.outcome.faults.append("the ids are not those of the source, in order")
            return
        for row, vector in zip(rows, table.column("embedding").to_pylist(), strict=True):
            wanted = None if is_bad(row) else fake_vector(row["text"], dims)
            if (vector is None) != (wanted is None) or not (vector is None or np.array_equal(vector, wanted)):
                self.outcome.faults.append(f"row {row['id']} has a wrong vector: {vector}")
                return
        failed = Counter(error["id"]["id"] for error in found.errors())
        if failed != Counter(row["id"] for row in rows if is_bad(row)):
            self.outcome.faults.append(f"errors are on record for {dict(failed)}")


def play(seed: int, *, traced: bool = False) -> Outcome:
    """Play one seed and prove what came of it."""
    for poison in (False, True):
        planned(4, poison)
    world = World(seed, traced=traced)
    before, collecting = random.getstate(), gc.isenabled()
    cores = _stay_on_one_core()
    # Destructors close files, so they must not run at a random moment.
    gc.disable()
    random.seed(seed)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(Nowhere()))
            for owner, name, value in world.patches():
                owner = importlib.import_module(owner) if isinstance(owner, str) else owner
                stack.enter_context(patch.object(owner, name, value))
            world.tell()
            world.turns.run()
            if not world.outcome.faults:
                world.prove()
    except Exception as error:
        world.outcome.faults.append("".join(traceback.format_exception(error)))
    finally:
        random.setstate(before)
        if cores:
            os.sched_setaffinity(0, cores)
        if collecting:
            gc.enable()
        world.close()
    world.outcome.requests, world.outcome.digest = world.line.requests, world.line.seen.hexdigest()
    return world.outcome


def _stay_on_one_core() -> set[int]:
    """Threads that take turns are slow to wake each other across cores. Returns the cores that were allowed before."""
    if not hasattr(os, "sched_setaffinity"):
        return set()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[os.getpid() % len(cores)]})
    return cores
