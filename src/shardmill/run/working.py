"""One worker that pulls shards until the run is done. It needs nobody: no engine placed it, and nobody watches it."""

from __future__ import annotations

import os
import random
import threading

from shardmill import permission
from shardmill.devices import pick_worker_device
from shardmill.engines.process import name_worker
from shardmill.errors import Cure, Preempted
from shardmill.ledger import Ledger
from shardmill.run.result import Run
from shardmill.spec import Execution
from shardmill.steps import finish
from shardmill.tasks import open_task
from shardmill.worker import Worker
from shardmill.worker.process import work as work_on
from shardmill.worker.signals import Signals


def work(
    place: str | os.PathLike[str],
    *,
    device: str | None = None,
    allow_code: bool = False,
    quiet: bool = True,
    own_process: bool = False,
) -> Run:
    """Be one worker of a run, until every shard is committed and what follows the last shard is done.

    Any number of workers can do this, on any machine that can read the run folder; no other process is needed. While
    others hold the last shards, it waits. Raises Preempted if it is told to stop. `device` is auto, cpu or cuda; the
    run's own setting if left out. Code that the folder names is run only with `allow_code`. A process of its own stops
    on signals, and ends if the worker does not.
    """
    ledger = Ledger(place)
    plan, settings = ledger.settle()
    execution = Execution(**settings)
    if allow_code:
        permission.allow(plan.code)
    permission.check(plan.code)
    check_wanted(ledger)
    if ledger.is_over(len(plan.shards)):
        # The model is not loaded for nothing.
        name, stop = name_worker(os.getpid()), threading.Event()
        done = finish(ledger, plan, execution, name, stop=stop, quiet=quiet)
    else:
        task = open_task(plan.work.task, plan.work.params)
        kind = device or execution.device.replace("all", "auto")
        picked = pick_worker_device(kind, task.gpu_bytes(execution.precision == "float32") or 0)
        on_stuck = (lambda: os._exit(Cure.HERE)) if own_process else None
        worker = Worker(ledger, device=picked, slot=random.random(), on_stuck=on_stuck)
        signals = Signals() if own_process else None
        if signals is not None:
            signals.hand_over(worker)
        done = work_on(worker, alone=True, quiet=quiet)
        if not done and signals is not None and signals.interrupted:
            raise KeyboardInterrupt
    if not done:
        check_wanted(ledger)
        raise Preempted("The worker was told to stop.", hint=f"Go on with: shardmill work {ledger.url}")
    return Run(ledger.url)


def check_wanted(ledger: Ledger) -> None:
    """Raise what a worker is told that is not wanted: the run was stopped, or failed, or was started over."""
    if (refusal := ledger.state.refusal()) is not None:
        raise refusal
