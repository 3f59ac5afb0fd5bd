"""What a trial has of its run: the context of its item, which also prunes it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from shardmill.core.errors import TaskError
from shardmill.tasks.context import Checkpoint, Context, Group
from shardmill.verbs.tune.sampling import Judge

# Kept with each checkpoint, so that a resumed trial is judged by the same reports.
_OWN_FILE = "trial.json"


class Pruned(Exception):
    """The trial ends here: it is not promising, or its time is over."""


class TrialContext:
    """The context of a trial. `report` raises Pruned if the trial is to end; an objective lets it pass."""

    def __init__(
        self, context: Context, judge: Judge, *, metric: str, device: str, limit_s: float | None = None
    ) -> None:
        self.number, self.device = context.shard, device
        self.reports: dict[int, float] = {}
        self.seconds_before = 0.0
        self._context, self._judge, self._metric, self._limit_s = context, judge, metric, limit_s
        self._began = time.monotonic()
        if (found := context.checkpoint()) is not None:
            said = json.loads(found.read(_OWN_FILE))
            self.seconds_before = float(said["seconds"])
            for step, value in said["reports"]:
                self._hear(int(step), float(value))

    def report(self, step: int, figures: Mapping[str, float], *, steps: int | None = None) -> None:
        """Say how far the trial is. The first metric of the study, if among the figures, decides about pruning."""
        step = _whole(step, f"report({step!r}, {figures!r})")
        if not isinstance(figures, Mapping):
            raise TaskError(
                f"report({step}, {figures!r}): the figures are not a dict.",
                hint=f'Write context.report({step}, {{"{self._metric}": …}}).',
            )
        for name, each in figures.items():
            if not hasattr(each, "__float__") or (name == self._metric and not math.isfinite(each)):
                raise TaskError(f"{name} is {each!r} at step {step}.")
        value = figures.get(self._metric)
        self._context.report(step, figures, steps=steps)
        if value is not None and step not in self.reports:
            self._hear(step, float(value))
            if self._judge.is_pruned:
                raise Pruned
        if self._limit_s is not None and self._seconds() > self._limit_s:
            raise Pruned

    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint of this trial; None if there is none."""
        return self._context.checkpoint()

    def keep(self, step: int, files: Mapping[str, Path | bytes]) -> None:
        """Make these files the trial's checkpoint."""
        if _OWN_FILE in files:
            raise TaskError(f"{_OWN_FILE!r} is a file of the study.", hint="Keep yours by another name.")
        own = {"reports": list(self.reports.items()), "seconds": self._seconds()}
        self._context.keep(_whole(step, f"keep({step!r}, …)"), {**files, _OWN_FILE: json.dumps(own).encode()})

    def publish(self, folder: Path) -> None:
        """Nothing: of a trial only its figures stay. The best parameters are trained again, on all there is."""

    def join(self) -> AbstractContextManager[Group]:
        """The workers that work on the trial together."""
        return self._context.join()

    @property
    def shard(self) -> int:
        """The number of the trial."""
        return self.number

    def should_stop(self) -> bool:
        """Whether to keep what there is and raise Stopped."""
        return self._context.should_stop()

    def _hear(self, step: int, value: float) -> None:
        self.reports[step] = value
        self._judge.hear(step, value)

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self._began


def _whole(step: Any, said: str) -> int:
    """A step as a plain integer, which may have been one of NumPy."""
    if isinstance(step, bool) or not hasattr(step, "__index__") or int(step) < 0:
        raise TaskError(f"{said}: the step is not a whole number.", hint="The step comes first, then the figures.")
    return int(step)
