"""A study: every item is a trial, whose parameters depend on the trials of finished generations."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.core.errors import TaskError
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.tasks.context import Context, LongTask
from shardmill.tasks.params import read_params
from shardmill.verbs.tune.context import Pruned, TrialContext
from shardmill.verbs.tune.history import to_row
from shardmill.verbs.tune.objective import CalledObjective, Objective, TaskObjective
from shardmill.verbs.tune.sampling import Judge, check_options, load_optuna
from shardmill.verbs.tune.settings import StudySettings
from shardmill.verbs.tune.start import TrialStarts
from shardmill.verbs.tune.trial import COMPLETE, PRUNED, SKIPPED, Trial

_TYPES = {"double": pa.float64(), "int64": pa.int64(), "string": pa.string(), "bool": pa.bool_()}
_BY_THE_CLOCK = "The study has a time limit: another run of it may skip or end other trials."
_BY_THE_TIME = "The loss of a training is reported now and then: another run of the study may prune other trials."


class TuneTask(LongTask):
    """Made from the settings of a study. A trial that raises is set aside with its reason, and the study goes on."""

    max_errors = "100%"

    def __init__(self, **params: Any) -> None:
        self.settings = settings = read_params(StudySettings, params, "tune")
        check_options(settings)
        self.output = pa.schema([pa.field(name, _TYPES[kind]) for name, kind in settings.columns.items()])
        self.notes = [note for note, holds in _notes(settings) if holds]
        self._objective: Objective = CalledObjective(settings) if settings.call else TaskObjective(settings)

    def fingerprint(self) -> dict[str, str]:
        return {"optuna": str(load_optuna().__version__), **self._objective.fingerprint()}

    def join(self, ledger: Ledger, plan: Plan) -> None:
        self._starts = TrialStarts(ledger, self.settings)

    def check_installed(self, kind: str) -> None:
        self._objective.check_installed(kind)

    def open(self, device: Device) -> None:
        self._device = device.kind
        self._objective.open(device)

    def work(self, item: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        number, began = context.shard, time.monotonic()
        start = self._starts.settle(number)
        if start is None:
            return to_row(self.settings, Trial(number, SKIPPED, {}))
        judge = Judge(self.settings, number, start.parameters, lambda: self._starts.before(number))
        limit_s = self.settings.trial_limit_s
        trial = TrialContext(context, judge, metric=self._pruned_by(), device=self._device, limit_s=limit_s)
        try:
            found = self._objective.run(item, dict(start.parameters), trial)
            state, values = COMPLETE, self._values(found)
        except Pruned:
            state, values = PRUNED, tuple(trial.reports.values())[-1:]
        seconds = trial.seconds_before + time.monotonic() - began
        return to_row(self.settings, Trial(number, state, start.parameters, values, trial.reports, seconds=seconds))

    def _pruned_by(self) -> str:
        return next(iter(self.settings.metrics))

    def _values(self, found: Any) -> tuple[float, ...]:
        """One finite number per metric, from what the objective returned."""
        names = list(self.settings.metrics)
        if not isinstance(found, Mapping):
            if len(names) > 1:
                raise TaskError(f"The objective returned {found!r}, and not a value for each of {', '.join(names)}.")
            found = {names[0]: found}
        for name in names:
            value = found.get(name)
            if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(float(value)):
                raise TaskError(f"The objective returned {value!r} for {name}.")
        return tuple(float(found[name]) for name in names)


def _notes(settings: StudySettings) -> list[tuple[str, bool]]:
    """What is not reproducible about a study."""
    prunes_by_loss = bool(settings.task) and settings.pruner["name"] != "none" and "loss" in settings.metrics
    return [(_BY_THE_CLOCK, bool(settings.time_limit or settings.trial_time_limit)), (_BY_THE_TIME, prunes_by_loss)]
