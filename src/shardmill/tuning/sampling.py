"""What each trial tries: Optuna's samplers and pruners over the trials of finished generations."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardmill.errors import SpecError, missing_extra
from shardmill.tuning.settings import StudySettings
from shardmill.tuning.space import Choices, NumberRange, Value
from shardmill.tuning.trial import COMPLETE, FAILED, PRUNED, SKIPPED, Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

_NAME = "shardmill"


def suggest(settings: StudySettings, generation: int, finished: Sequence[Trial]) -> list[dict[str, Value]]:
    """The parameters of all trials of a generation, from the seed and the trials of the generations before it.

    The trials are asked for one after another, so that those of a generation differ from each other as well.
    """
    study = rebuild(settings, finished, _make_sampler(settings, generation))
    first, space = generation * settings.generation, distributions(settings)
    for point in settings.starts[first : first + settings.generation]:
        study.enqueue_trial(point)
    with _quiet():
        return [dict(study.ask(space).params) for _ in range(settings.generation)]


class Judge:
    """Says whether a trial is to be pruned, by its own reports and the trials of finished generations."""

    def __init__(
        self, settings: StudySettings, parameters: Mapping[str, Value], finished: Callable[[], Sequence[Trial]]
    ) -> None:
        optuna = load_optuna()
        self._never = settings.pruner["name"] == "none"
        if self._never:
            return
        study = rebuild(settings, finished(), optuna.samplers.RandomSampler(0), _make_pruner(settings))
        study.enqueue_trial(dict(parameters))
        with _quiet():
            self._trial = study.ask(distributions(settings))

    def hear(self, step: int, value: float) -> None:
        if not self._never:
            self._trial.report(value, step)

    def is_pruned(self) -> bool:
        return not self._never and self._trial.should_prune()


def rebuild(
    settings: StudySettings, trials: Iterable[Trial], sampler: BaseSampler | None = None, pruner: Any = None
) -> Study:
    """A study in memory with these trials, in the order of their numbers."""
    optuna = load_optuna()
    study: Study = optuna.create_study(
        sampler=sampler, pruner=pruner, study_name=_NAME, directions=list(settings.metrics.values())
    )
    fill(study, settings, trials)
    return study


def fill(study: Study, settings: StudySettings, trials: Iterable[Trial]) -> None:
    space = distributions(settings)
    for trial in sorted(trials, key=lambda each: each.number):
        study.add_trial(freeze(trial, space))


def freeze(trial: Trial, space: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """A trial as Optuna has it. One that was skipped tried nothing."""
    optuna = load_optuna()
    states = optuna.trial.TrialState
    known = {COMPLETE: states.COMPLETE, PRUNED: states.PRUNED, FAILED: states.FAIL, SKIPPED: states.FAIL}
    made: FrozenTrial = optuna.trial.create_trial(
        state=known[trial.state],
        values=list(trial.values) if trial.state == COMPLETE else None,
        params=dict(trial.parameters),
        distributions={name: space[name] for name in trial.parameters},
        intermediate_values=dict(trial.reports),
        user_attrs={"reason": trial.reason} if trial.reason else {},
    )
    return made


def distributions(settings: StudySettings) -> dict[str, BaseDistribution]:
    """The space as Optuna has it."""
    return {name: _distribution(each) for name, each in settings.ranges.items()}


def load_optuna() -> Any:
    """Optuna, which talks only when something is wrong."""
    try:
        import optuna
    except ImportError as error:
        raise missing_extra("optuna", "tune") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(each: NumberRange | Choices) -> BaseDistribution:
    kinds = load_optuna().distributions
    if isinstance(each, Choices):
        made: BaseDistribution = kinds.CategoricalDistribution(each.values)
    elif each.kind == "int64":
        made = kinds.IntDistribution(each.low, each.high, log=each.log, step=each.step or 1)
    else:
        made = kinds.FloatDistribution(each.low, each.high, log=each.log, step=each.step)
    return made


def _make_sampler(settings: StudySettings, generation: int) -> BaseSampler:
    samplers = load_optuna().samplers
    kinds = {
        "tpe": samplers.TPESampler,
        "random": samplers.RandomSampler,
        "grid": samplers.BruteForceSampler,
        "gp": samplers.GPSampler,
    }
    made: BaseSampler = _make("sampler", kinds, {**settings.sampler, "seed": _seed(settings.seed, generation)})
    return made


def _make_pruner(settings: StudySettings) -> Any:
    pruners = load_optuna().pruners
    kinds = {
        "median": pruners.MedianPruner,
        "percentile": pruners.PercentilePruner,
        "patient": lambda **options: pruners.PatientPruner(None, **options),
        "threshold": pruners.ThresholdPruner,
        "wilcoxon": pruners.WilcoxonPruner,
    }
    return _make("pruner", kinds, settings.pruner)


def _make(what: str, kinds: Mapping[str, Callable[..., Any]], options: Mapping[str, Any]) -> Any:
    own = {name: value for name, value in options.items() if name != "name"}
    try:
        with _quiet():
            return kinds[options["name"]](**own)
    except (TypeError, ValueError, ImportError) as error:
        raise SpecError(f"The {what} {options['name']!r} cannot be made: {error}.") from error


def check_options(settings: StudySettings) -> None:
    """Refuse options that the sampler or the pruner does not have."""
    _make_sampler(settings, 0)
    if settings.pruner["name"] != "none":
        _make_pruner(settings)


def _seed(seed: int, generation: int) -> int:
    digest = hashlib.sha256(f"{seed}:{generation}".encode()).digest()
    return int.from_bytes(digest[:4])


def _quiet() -> warnings.catch_warnings[None]:
    """Silence warnings that an interface of Optuna may change."""
    return warnings.catch_warnings(action="ignore")
