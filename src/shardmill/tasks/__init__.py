"""Tasks, the work done on every item: built-in ones such as `embed`, and `package.module:Class` for your own."""

from __future__ import annotations

import importlib
from typing import Any

from shardmill import permission
from shardmill.devices import Device, pick_device
from shardmill.errors import DeviceLost, DeviceOutOfMemory, SpecError, nearest
from shardmill.tasks.base import Task
from shardmill.tasks.foreign import ForeignTask

_BUILT_IN = {
    "apply": "shardmill.tasks.apply:ApplyTask",
    "answer": "shardmill.tasks.answer:AnswerTask",
    "augment": "shardmill.tasks.augment:AugmentTask",
    "embed": "shardmill.tasks.embed:EmbedTask",
    "generate": "shardmill.tasks.generate:GenerateTask",
    "map": "shardmill.tasks.map:MapTask",
    "summarize": "shardmill.tasks.summarize:SummarizeTask",
    "train": "shardmill.tasks.train:TrainTask",
    "tune": "shardmill.tasks.tune:TuneTask",
}


def open_task(name: str, params: dict[str, Any]) -> Task:
    """Make the task `name` from its parameters; a class that does not inherit from `Task` is wrapped.

    A class of others is imported only with permission: the name may come from a run folder.
    """
    target = _BUILT_IN.get(name, name)
    module_name, _, attribute = target.partition(":")
    if not attribute:
        raise SpecError(f"No task is called {name!r}.", hint=nearest(name, [*_BUILT_IN, "package.module:Class"]))
    permission.check(permission.code_among(name, ()))
    try:
        kind = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"The task {name!r} cannot be imported: {error}.") from error
    wanted = ("fingerprint", "open", "prepare", "run")
    if not isinstance(kind, type) or not all(callable(getattr(kind, w, None)) for w in wanted):
        raise SpecError(f"{name} is not a task.", hint=f"A task is a class with {', '.join(wanted)} (docs/tasks.md).")
    try:
        made = kind(**params)
    except TypeError as error:
        raise SpecError(f"The task {name!r} cannot be made: {error}.") from error
    return made if isinstance(made, Task) else ForeignTask(made)


def open_here(task: Task, *, precise: bool) -> Device:
    """Open a task in this process, for few items, on a GPU if one has room, else on the CPU; returns the device."""
    device = pick_device(task.gpu_bytes(precise), precise=precise)
    try:
        task.open(device)
    except (DeviceOutOfMemory, DeviceLost, RuntimeError, AssertionError):
        # Another process may have taken the memory since, and torch may be built without CUDA.
        if device.kind == "cpu":
            raise
        device = pick_device(None, precise=precise)
        task.open(device)
    return device
