"""The task that a worker of a pool has open, kept from one run to the next: loading a model may take minutes."""

from __future__ import annotations

from typing import Any

from shardmill.core.devices import Device
from shardmill.plan import Plan
from shardmill.plan.spec import Execution
from shardmill.tasks import open_task, pick_for_worker
from shardmill.tasks.base import Task
from shardmill.tasks.foreign import ForeignTask


class LoadedTask:
    """At most one open task, with the device that it is on."""

    def __init__(self) -> None:
        self._lasting: _Lasting | None = None
        self._for: tuple[object, ...] = ()
        self._bytes = 0
        self._device: Device | None = None

    def take(self, plan: Plan, execution: Execution, kind: str) -> tuple[Task, Device]:
        """The task of a run and the device for it. What is open stays so if this run would open the same."""
        wanted = (plan.work.task, plan.work.params, plan.fingerprint, execution.precision, kind)
        lasting, size = self._lasting, plan.stat.size_bytes
        # Kernels are chosen by the size of the source: those for a small one are slow on a large one.
        if lasting is not None and lasting.is_open and wanted == self._for and size <= self._bytes:
            assert self._device is not None
            return ForeignTask(lasting), self._device
        self.close()
        task = open_task(plan.work.task, plan.work.params)
        device = pick_for_worker(task, kind, precise=execution.precision == "float32")
        if not task.serves_runs:
            return task, device
        self._lasting, self._for, self._bytes, self._device = _Lasting(task), wanted, size, device
        return ForeignTask(self._lasting), device

    def close(self) -> None:
        """Free the device."""
        lasting, self._lasting = self._lasting, None
        if lasting is not None:
            lasting.close()


class _Lasting:
    """A task that is opened once, however often a run opens it."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.is_open = False
        self._before: dict[str, float] = {}

    def open(self, device: Device) -> None:
        if not self.is_open:
            self._task.open(device)
            self.is_open = True
        self._before = dict(self._task.device_clock or {})

    @property
    def device_clock(self) -> dict[str, float] | None:
        """The clock of this run: the task counts all its runs."""
        now = self._task.device_clock
        return None if now is None else {name: value - self._before.get(name, 0.0) for name, value in now.items()}

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._task.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)
