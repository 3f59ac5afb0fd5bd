"""One worker that pulls shards until the run is done. It needs nobody: no engine placed it, and nobody watches it."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from pathlib import Path

from shardmill.core import permission
from shardmill.core.devices import cores
from shardmill.core.dialect import shell_command
from shardmill.core.errors import Cure, MissingExtra, Preempted, ShardmillError
from shardmill.engines import LOCAL
from shardmill.engines.local import LocalEngine
from shardmill.engines.process import TERMINATION_LOG, name_worker
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import Execution, Spec, make_execution
from shardmill.plugins import check_packages
from shardmill.run.planner import devices_for
from shardmill.run.result import Run
from shardmill.tasks import open_task, pick_for_worker
from shardmill.worker import Worker
from shardmill.worker.process import work as work_on
from shardmill.worker.signals import Signals
from shardmill.worker.steps import finish

_POLL_S = 0.1


def work(
    place: str | os.PathLike[str],
    *,
    device: str | None = None,
    workers: int = 1,
    allow_code: bool = False,
    quiet: bool = True,
    own_process: bool = False,
) -> Run:
    """Be one worker of a run, until every shard is committed and what follows the last shard is done.

    Any number of workers can do this, on any machine that can read the run folder; no other process is needed. While
    others hold the last shards, it waits. Raises Preempted if it is told to stop. `device` is auto, cpu or cuda; the
    run's own setting if left out. With several `workers`, one process per GPU works, and this one watches them. Code
    that the folder names is run only with `allow_code`. A process of its own stops on signals, and ends if the worker
    does not.
    """
    ledger = Ledger(place)
    plan, settings = ledger.settle()
    execution = make_execution(settings)
    if execution.read_ahead and own_process:
        # Threads of the tokenizer hold texts too.
        os.environ["RAYON_NUM_THREADS"] = str(max(1, int(cores() * execution.read_ahead)))
    if allow_code:
        permission.allow(plan.code)
    permission.check(plan.code)
    check_packages(plan.packages)
    check_wanted(ledger)
    if ledger.is_over(len(plan.shards)):
        # The model is not loaded for nothing.
        done = finish(ledger, plan, execution, name_worker(os.getpid()), stop=threading.Event(), quiet=quiet)
    elif workers > 1:
        done = _work_together(ledger, plan, execution, workers, device, quiet)
    else:
        task = open_task(plan.work.task, plan.work.params)
        kind = device or execution.device.replace("all", "auto")
        picked = pick_for_worker(task, kind, precise=execution.precision == "float32")
        on_stuck = (lambda: os._exit(Cure.HERE)) if own_process else None
        name = os.environ.get("SHARDMILL_WORKER")
        worker = Worker(ledger, device=picked, name=name, slot=random.random(), on_stuck=on_stuck)
        signals = Signals() if own_process else None
        if signals is not None:
            signals.hand_over(worker)
        done = work_on(worker, alone=True, quiet=quiet)
        if not done and signals is not None and signals.interrupted:
            raise KeyboardInterrupt
    if not done:
        check_wanted(ledger)
        raise Preempted("The worker was told to stop.", hint=f"Go on with: {shell_command('work', ledger.url)}")
    return Run(ledger.url)


def _work_together(
    ledger: Ledger, plan: Plan, execution: Execution, workers: int, device: str | None, quiet: bool
) -> bool:
    """Run several workers on the devices of this machine, then do what follows the last shard."""
    changes = {"engine": LOCAL, "engine_options": {}, "workers": workers, "device": device or execution.device}
    devices = devices_for(Spec(work=plan.work, execution=execution.model_copy(update=changes)))
    engine = LocalEngine(devices, max_restarts=execution.max_restarts, stuck_s=execution.stuck_s)
    placement = engine.start(ledger.url)
    try:
        while placement.poll():
            time.sleep(_POLL_S)
    finally:
        placement.stop()
    if not ledger.is_over(len(plan.shards)):
        return False
    return finish(ledger, plan, execution, name_worker(os.getpid()), stop=threading.Event(), quiet=quiet)


def for_scheduler(error: ShardmillError, run: str = "") -> ShardmillError:
    """An error with the exit status by which a scheduler starts a worker again, here, elsewhere or not at all.

    In a pod the cause is also written to where the cluster looks for it, and into the run's folder: the cluster
    forgets it with the pod. All pods have one image: what it lacks is final.
    """
    if isinstance(error, Preempted):
        return error
    place = os.environ.get(TERMINATION_LOG, "")
    if place and isinstance(error, MissingExtra):
        error.cure = Cure.FINAL
        error.hint = f"Build the pods' image with it (EXTRAS of deploy/Containerfile), or use another. {error.hint}"
    with suppress(OSError, ShardmillError):
        if place:
            Path(place).write_text(error.as_last_words() + "\n")
            if run:
                Ledger(run).store.put(f"logs/{os.environ['SHARDMILL_WORKER']}.log", f"{error}\n".encode())
    return error.with_cure_as_status(even_final=bool(place))


def check_wanted(ledger: Ledger) -> None:
    """Raise what a worker is told that is not wanted: the run was stopped, or failed, or was started over."""
    if (refusal := ledger.state.refusal()) is not None:
        raise refusal
