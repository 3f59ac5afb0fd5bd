"""What a trial runs: a function of the user's, or a task of its own with some parameters from the space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError, TaskError, UsageError
from shardmill.core.functions import fingerprint_call, load_call
from shardmill.tasks import open_task
from shardmill.tasks.context import LongTask
from shardmill.verbs.tune.context import TrialContext
from shardmill.verbs.tune.settings import StudySettings
from shardmill.verbs.tune.space import Value

# Columns of a task that measures by one of several metrics: the name of that metric, and its best value.
_METRIC, _BEST = "metric", "best"


class Objective(ABC):
    """Runs one trial and returns its metrics."""

    @abstractmethod
    def fingerprint(self) -> dict[str, str]: ...

    def check_installed(self, kind: str) -> None:  # noqa: B027
        """Raise MissingExtra if it cannot run here on a kind of device."""

    @abstractmethod
    def open(self, device: Device) -> None: ...

    @abstractmethod
    def run(self, item: Mapping[str, Any], parameters: dict[str, Value], context: TrialContext) -> Any: ...


class CalledObjective(Objective):
    """A function `(parameters, context)` by its name. It is imported only with permission: a folder may name it.

    Who looks at a study does not import it.
    """

    def __init__(self, settings: StudySettings) -> None:
        self._name, self._code = settings.call, settings.code

    def fingerprint(self) -> dict[str, str]:
        """The digest of its module: a changed objective is another study. One that is not there is refused."""
        load_call(self._name, self._code)
        return fingerprint_call(self._name, self._code)

    def open(self, device: Device) -> None:
        self._call: Callable[[dict[str, Value], TrialContext], Any] = load_call(self._name, self._code)

    def run(self, item: Mapping[str, Any], parameters: dict[str, Value], context: TrialContext) -> Any:
        with _as_its_own():
            return self._call(parameters, context)


class TaskObjective(Objective):
    """A task that runs for hours, made anew for each trial; the metrics are columns of its row."""

    def __init__(self, settings: StudySettings) -> None:
        self._name, self._params = settings.task, settings.params
        task = self._make(settings.example)
        known = _names_of_metrics(task)
        for metric in settings.metrics:
            if metric not in known and (task.metrics is not None or _BEST not in task.output.names):
                raise SpecError(
                    f"The task {self._name!r} has no metric {metric!r}.",
                    hint=f"It has {', '.join(known)}. Write {_example(known[0])} in [work]." if known else "",
                )
        self._task = task

    def _make(self, parameters: Mapping[str, Value]) -> LongTask:
        task = open_task(self._name, {**self._params, **parameters})
        if not isinstance(task, LongTask):
            raise SpecError(f"The task {self._name!r} cannot be a trial.", hint="A trial is a task that trains.")
        return task

    def fingerprint(self) -> dict[str, str]:
        return self._task.fingerprint()

    def check_installed(self, kind: str) -> None:
        self._task.check_installed(kind)

    def open(self, device: Device) -> None:
        self._device = device

    def run(self, item: Mapping[str, Any], parameters: dict[str, Value], context: TrialContext) -> Any:
        with _as_its_own():
            task = self._make(parameters)
            task.open(self._device)
            try:
                return _metrics(task.work(item, context))
            finally:
                task.close()


@contextmanager
def _as_its_own() -> Iterator[None]:
    """What a trial asked for in vain, memory or something of shardmill, fails the trial and not the study."""
    try:
        yield
    except MemoryError as error:
        raise TaskError(f"MemoryError: {error}") from error
    except UsageError as error:
        if error.retryable or isinstance(error, TaskError):
            raise
        raise TaskError(error.message, hint=error.hint) from error


def _names_of_metrics(task: LongTask) -> list[str]:
    """What it measures, and the columns of its row that are numbers, the loss first."""
    numbers = [each.name for each in task.output if pa.types.is_floating(each.type) or pa.types.is_integer(each.type)]
    return [*(task.metrics or ()), *sorted(numbers, key=lambda name: name != "loss")]


def _example(metric: str) -> str:
    return f'metrics = {{ "{metric}" = "{"minimize" if metric == "loss" else "maximize"}" }}'


def _metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a task, with the metric that it measured by under its own name."""
    return {**row, str(row[_METRIC]): row[_BEST]} if row.get(_METRIC) else dict(row)
