"""Small jobs, done by the command itself: a process of its own takes longer to start than such a job takes.

Design: docs/design/the-worker.md
"""

from __future__ import annotations

import signal
import subprocess
import threading
import traceback
from collections import deque
from collections.abc import Sequence

from shardmill.core.devices import Device
from shardmill.core.errors import Cure
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import Execution
from shardmill.plugins import find_verb
from shardmill.run.small_jobs import are_small_jobs_here
from shardmill.worker import Worker
from shardmill.worker.process import run_worker
from shardmill.worker.pulse import logging_to

# Some seconds of embedding on two cores. Of more work, the 0.7 s that a process of its own costs are no matter.
_SMALL_BYTES = 128 << 10
_ENDED_WELL = ("done", "stopped")


def is_done_here(ledger: Ledger, plan: Plan, execution: Execution, devices: Sequence[Device]) -> bool:
    """Whether a command does the work of a run itself: little work for one CPU, by a task of shardmill's own.

    A run whose workers have not all ended well gets a process of its own: what ended them may end that one, too.
    """
    task = plan.work.task
    return (
        are_small_jobs_here()
        and [device.kind for device in devices] == ["cpu"]
        and plan.stat.size_bytes <= _SMALL_BYTES
        and not ({"engine", "workers"} & execution.model_fields_set or execution.detach)
        and not (":" in task or plan.code or plan.packages or find_verb(task).long_items)
        and all(beat["state"] in _ENDED_WELL for beat in ledger.workers.read())
    )


class WorkerHere:
    """A worker on a thread of this process, with what the local engine uses of a process."""

    def __init__(self, run: str, name: str, device: Device, lines: deque[str]) -> None:
        self._run, self._name, self._device, self._lines = run, name, device, lines
        self._status = 0
        self._told, self._ended = threading.Event(), threading.Event()
        self._worker: Worker | None = None
        threading.Thread(target=self._work, name="worker", daemon=True).start()

    def poll(self) -> int | None:
        return self._status if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self._name, timeout or 0.0)
        return self._status

    def signal(self, number: int) -> None:
        """Tell the worker to stop; after SIGKILL nobody waits for it any more."""
        if number == signal.SIGKILL:
            self._end(-number)
        self._told.set()
        if self._worker is not None:
            self._worker.stop()

    def _work(self) -> None:
        try:
            with logging_to(self._lines.append):
                status = run_worker(self._make, self._lines.append)
        except BaseException:
            self._lines.extend(traceback.format_exc().splitlines())
            status = 1
        self._end(status)

    def _make(self) -> Worker:
        worker = Worker(Ledger(self._run), device=self._device, name=self._name, on_stuck=lambda: self._end(Cure.HERE))
        self._worker = worker
        if self._told.is_set():
            worker.stop()
        return worker

    def _end(self, status: int) -> None:
        if not self._ended.is_set():
            self._status = status
            self._ended.set()
