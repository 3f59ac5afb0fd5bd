"""What a trial runs: a function of the user's, or a task of its own with some parameters from the space."""

from __future__ import annotations

import hashlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shardmill import permission
from shardmill.devices import Device
from shardmill.errors import SpecError, TaskError, UsageError
from shardmill.tasks import open_task
from shardmill.tasks.context import LongTask
from shardmill.tasks.tune.context import TrialContext
from shardmill.tuning.settings import StudySettings
from shardmill.tuning.space import Value

# Columns of a task that measures by one of several metrics: the name of that metric, and its best value.
_METRIC, _BEST = "metric", "best"


class Objective(ABC):
    """Runs one trial and returns its metrics."""

    @abstractmethod
    def fingerprint(self) -> dict[str, str]: ...

    @abstractmethod
    def open(self, device: Device) -> None: ...

    @abstractmethod
    def run(self, item: Mapping[str, Any], parameters: dict[str, Value], context: TrialContext) -> Any: ...


class CalledObjective(Objective):
    """A function `(parameters, context)` by its name. It is imported only with permission: a folder may name it.

    Who looks at a study does not import it.
    """

    def __init__(self, settings: StudySettings) -> None:
        self._name = settings.call

    def fingerprint(self) -> dict[str, str]:
        """The digest of its module: a changed objective is another study."""
        module, _ = self._load()
        file = getattr(module, "__file__", None)
        return {"objective": hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()[:16]}

    def open(self, device: Device) -> None:
        _, self._call = self._load()

    def run(self, item: Mapping[str, Any], parameters: dict[str, Value], context: TrialContext) -> Any:
        return self._call(parameters, context)

    def _load(self) -> tuple[Any, Callable[[dict[str, Value], TrialContext], Any]]:
        permission.check((self._name,))
        module_name, _, name = self._name.partition(":")
        try:
            module = importlib.import_module(module_name)
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise SpecError(f"The objective {self._name!r} cannot be imported: {error}.") from error
        if not callable(found):
            raise SpecError(f"{self._name} is not a function.", hint="An objective is called with its parameters.")
        return module, found


class TaskObjective(Objective):
    """A task that runs for hours, made anew for each trial; the metrics are columns of its row."""

    def __init__(self, settings: StudySettings) -> None:
        self._name, self._params = settings.task, settings.params
        task = self._make(settings.example)
        for metric in settings.metrics:
            if metric not in task.output.names and _BEST not in task.output.names:
                raise SpecError(
                    f"The task {self._name!r} has no metric {metric!r}.", hint=f"It has {', '.join(task.output.names)}."
                )
        self._fingerprint = task.fingerprint

    def _make(self, parameters: Mapping[str, Value]) -> LongTask:
        task = open_task(self._name, {**self._params, **parameters})
        if not isinstance(task, LongTask):
            raise SpecError(f"The task {self._name!r} cannot be a trial.", hint="A trial is a task that trains.")
        return task

    def fingerprint(self) -> dict[str, str]:
        return self._fingerprint()

    def open(self, device: Device) -> None:
        self._device = device

    def run(self, item: Mapping[str, Any], parameters: dict[str, Value], context: TrialContext) -> Any:
        try:
            task = self._make(parameters)
            task.open(self._device)
            try:
                return _metrics(task.work(item, context))
            finally:
                task.close()
        except UsageError as error:
            if error.retryable or isinstance(error, TaskError):
                raise
            raise TaskError(error.message, hint=error.hint) from error


def _metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a task, with the metric that it measured by under its own name."""
    return {**row, str(row[_METRIC]): row[_BEST]} if row.get(_METRIC) else dict(row)
