"""Tasks, the work done on every item: built-in ones such as `embed`, and `package.module:Class` for your own.

Design: docs/design/tasks.md
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from shardmill.core import permission
from shardmill.core.devices import Device, pick_device, pick_worker_device
from shardmill.core.errors import DeviceLost, DeviceOutOfMemory, MissingExtra, ModelError, SpecError, nearest
from shardmill.plugins import find_verb, load_part, names
from shardmill.tasks.base import Task
from shardmill.tasks.by_adapter import ByAdapter, names_field
from shardmill.tasks.foreign import ForeignTask


def open_task(name: str, params: dict[str, Any]) -> Task:
    """Make the task `name` from its parameters; a class that does not inherit from `Task` is wrapped.

    A class of others is imported only with permission: the name may come from a run folder.
    """
    target = name if ":" in name else find_verb(name).task
    if not target:
        having = [verb for verb in names("verbs") if find_verb(verb).task]
        raise SpecError(f"No task is called {name!r}.", hint=nearest(name, [*having, "package.module:Class"]))
    permission.check(permission.code_among(name, ()))
    try:
        kind = load_part(target)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"The task {name!r} cannot be imported: {error}.") from error
    wanted = ("fingerprint", "open", "prepare", "run")
    if not isinstance(kind, type) or not all(callable(getattr(kind, w, None)) for w in wanted):
        raise SpecError(f"{name} is not a task.", hint=f"A task is a class with {', '.join(wanted)} (docs/tasks.md).")
    if issubclass(kind, Task) and kind.takes_adapters and names_field(params.get("adapter")):
        return ByAdapter(kind, params)
    try:
        made = kind(**params)
    except TypeError as error:
        raise SpecError(f"The task {name!r} cannot be made: {error}.") from error
    return made if isinstance(made, Task) else ForeignTask(made)


# So little that no kernel is tried for it.
_FEW_BYTES = 1 << 10


class Opens(Protocol):
    """What is opened on a device: a task, or a model."""

    def gpu_bytes(self, precise: bool) -> int | None: ...
    def open(self, device: Device) -> None: ...


def open_here(task: Opens, *, precise: bool, reference: bool = False) -> Device:
    """Open a task in this process, for few items, on a GPU if one has room, else on the CPU; returns the device.

    A `reference` is what results are compared with.
    """
    device = pick_device(task.gpu_bytes(precise), precise=precise, reference=reference)
    if device.kind == "cuda":
        device = replace(device, work_bytes=_FEW_BYTES)
    try:
        task.open(device)
    except (DeviceOutOfMemory, DeviceLost, MissingExtra, RuntimeError, AssertionError):
        # Another process may have taken the memory since; torch may be missing, or built without CUDA.
        if device.kind == "cpu":
            raise
        device = pick_device(None, precise=precise, reference=reference)
        task.open(device)
    return device


def pick_for_worker(task: Task, kind: str, *, precise: bool) -> Device:
    """The device for a worker that no engine placed; with "auto" the CPU, if the task cannot use GPUs here."""
    if kind == "auto":
        try:
            task.check_installed("cuda")
        except (MissingExtra, ModelError):
            kind = "cpu"
    return pick_worker_device(kind, task.gpu_bytes(precise) or 0)
