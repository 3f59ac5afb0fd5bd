"""A study as a whole: its best trials, and which parameters mattered."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shardmill.core.errors import CorruptState, MissingExtra
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.verbs.tune.history import TrialHistory
from shardmill.verbs.tune.sampling import load_optuna, rebuild
from shardmill.verbs.tune.settings import StudySettings
from shardmill.verbs.tune.trial import COMPLETE, Trial

TASK = "tune"
# With fewer trials, importances are a matter of luck.
_FEWEST = 5


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The trials that have ended. `best` has one trial, or with several metrics those that no other beats in all."""

    settings: StudySettings
    planned: int
    trials: Sequence[Trial]
    best: Sequence[Trial]
    importances: dict[str, float]

    def count(self, state: str) -> int:
        return sum(trial.state == state for trial in self.trials)

    def to_json(self) -> dict[str, Any]:
        return {
            "metrics": dict(self.settings.metrics),
            "planned": self.planned,
            "best": [self._plain(trial) for trial in self.best],
            "importances": self.importances,
            "trials": [self._plain(trial) for trial in self.trials],
        }

    def _plain(self, trial: Trial) -> dict[str, Any]:
        return {
            "trial": trial.number,
            "state": trial.state,
            "values": dict(zip(self.settings.metrics, trial.values, strict=False)),
            "parameters": dict(trial.parameters),
            "seconds": round(trial.seconds, 3),
            **({"reason": trial.reason} if trial.reason else {}),
        }


def read_settings(ledger: Ledger, plan: Plan) -> StudySettings:
    """The settings of a study, from its plan."""
    try:
        return StudySettings(**plan.work.params)
    except ValidationError as error:
        raise CorruptState(f"{ledger.url}/plan.json is damaged: it has no settings of a study.") from error


def read_study(ledger: Ledger, plan: Plan) -> StudyResult:
    """Read a study at any time: the trials that have ended, and what they say."""
    settings = read_settings(ledger, plan)
    trials = TrialHistory(ledger, settings).ended(len(plan.shards))
    return StudyResult(settings, len(plan.shards), trials, find_best(settings, trials), _importances(settings, trials))


def find_best(settings: StudySettings, trials: Sequence[Trial]) -> list[Trial]:
    """The best trial, the first of equal ones; with several metrics all trials that none beats, in order.

    >>> settings = StudySettings(space={"x": [1, 2]}, call="a:b", metrics={"loss": "minimize"})
    >>> [t.number for t in find_best(settings, [Trial(0, "complete", {}, [2.0]), Trial(1, "complete", {}, [1.0])])]
    [1]
    """
    whole = [trial for trial in trials if trial.state == COMPLETE]
    signs = [1 if way == "minimize" else -1 for way in settings.metrics.values()]
    costs = {trial.number: [s * v for s, v in zip(signs, trial.values, strict=True)] for trial in whole}
    if len(signs) == 1:
        return [min(whole, key=lambda trial: (costs[trial.number], trial.number))] if whole else []
    return [trial for trial in whole if not any(_beats(costs[o.number], costs[trial.number]) for o in whole)]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return list(one) != list(other) and all(a <= b for a, b in zip(one, other, strict=True))


def _importances(settings: StudySettings, trials: Sequence[Trial]) -> dict[str, float]:
    """How much each parameter matters for the best values of the first metric, as shares of 1; empty if unknown."""
    whole = [trial for trial in trials if trial.state == COMPLETE]
    if len(whole) < _FEWEST or len(settings.space) < 2 or len({tuple(trial.values) for trial in whole}) < 2:
        return {}
    try:
        optuna = load_optuna()
    except MissingExtra:
        return {}
    with warnings.catch_warnings(action="ignore"):
        found = optuna.importance.get_param_importances(
            rebuild(settings, whole),
            evaluator=optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25),
            target=(lambda trial: trial.values[0]) if len(settings.metrics) > 1 else None,
        )
    return {name: round(float(share), 4) for name, share in found.items()}
