"""What each trial tries: Optuna's samplers and pruners over the trials of finished generations."""

from __future__ import annotations

import functools
import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shardmill.core.errors import ShardmillError, SpecError, TaskError, nearest
from shardmill.core.extras import missing_package
from shardmill.verbs.tune.settings import StudySettings
from shardmill.verbs.tune.space import Choices, NumberRange, Value
from shardmill.verbs.tune.trial import COMPLETE, FAILED, PRUNED, SKIPPED, Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

_NAME = "shardmill"
# Samplers and pruners of Optuna that note something with each trial, and go by it later.
_KEEPS_NOTES = ("cmaes", "nsgaii", "nsgaiii", "qmc", "halving", "hyperband")
# What samplers need that Optuna does not bring.
_NEEDS = {"cmaes": "cmaes", "qmc": "scipy"}


def suggest(settings: StudySettings, generation: int, finished: Sequence[Trial]) -> list[dict[str, Value]]:
    """The parameters of all trials of a generation, from the seed and the trials of the generations before it.

    The trials are asked for one after another, so that those of a generation differ from each other as well.
    """
    try:
        return _suggest(settings, generation, finished)
    except ShardmillError:
        raise
    except Exception as error:
        raise TaskError(f"The sampler {settings.sampler['name']!r} failed: {type(error).__name__}: {error}") from error


def _suggest(settings: StudySettings, generation: int, finished: Sequence[Trial]) -> list[dict[str, Value]]:
    remake = replay if settings.sampler["name"] in _KEEPS_NOTES else rebuild
    study = remake(settings, finished, _make_sampler(settings, generation))
    first, space = generation * settings.generation, distributions(settings)
    for point in settings.starts[first : first + settings.generation]:
        study.enqueue_trial(point)
    with _quiet():
        return [dict(study.ask(space).params) for _ in range(settings.generation)]


class Judge:
    """Says whether a trial is to be pruned, by its own reports and the trials of finished generations."""

    def __init__(
        self,
        settings: StudySettings,
        number: int,
        parameters: Mapping[str, Value],
        finished: Callable[[], Sequence[Trial]],
    ) -> None:
        optuna = load_optuna()
        self._never = settings.pruner["name"] == "none"
        self.is_pruned = False
        if self._never:
            return
        past = finished()
        remake = replay if settings.pruner["name"] in _KEEPS_NOTES else rebuild
        study = remake(settings, past, optuna.samplers.RandomSampler(0), _make_pruner(settings))
        # Some pruners go by the number of the trial. Of the others in its generation they learn nothing.
        fill(study, settings, [Trial(each, SKIPPED, {}) for each in range(len(past), number)])
        study.enqueue_trial(dict(parameters))
        with _quiet():
            self._trial = study.ask(distributions(settings))

    def hear(self, step: int, value: float) -> None:
        """Take in a report of the trial. Some pruners note how far it came, so each is asked about every report."""
        if not self._never:
            self._trial.report(value, step)
            self.is_pruned = self._trial.should_prune()


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


def replay(settings: StudySettings, trials: Sequence[Trial], sampler: BaseSampler, pruner: Any = None) -> Study:
    """As `rebuild`, for samplers and pruners that note something with each trial that is begun or reports.

    The ended trials are asked for again, a generation at a time, with the parameters that they had.
    """
    study, space = rebuild(settings, (), sampler, pruner), distributions(settings)
    with _quiet():
        for first in range(0, len(trials), settings.generation):
            ended = trials[first : first + settings.generation]
            for trial in ended:
                study.enqueue_trial(dict(trial.parameters))
            begun = [study.ask(space) for _ in ended]
            for asked in begun:
                _ = asked.relative_params  # Asks the sampler, which is not asked about a trial that was given.
            for asked, trial in zip(begun, ended, strict=True):
                for step, value in trial.reports.items() if len(settings.metrics) == 1 else ():
                    asked.report(value, step)
                    asked.should_prune()
                study.tell(asked, list(trial.values) if trial.state == COMPLETE else None, _states()[trial.state])
    return study


def fill(study: Study, settings: StudySettings, trials: Iterable[Trial]) -> None:
    space = distributions(settings)
    for trial in sorted(trials, key=lambda each: each.number):
        # A trial of several metrics has no reports in Optuna: TPE fails on them.
        study.add_trial(freeze(trial if len(settings.metrics) == 1 else replace(trial, reports={}), space))


def freeze(trial: Trial, space: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """A trial as Optuna has it. One that was skipped tried nothing."""
    made: FrozenTrial = load_optuna().trial.create_trial(
        state=_states()[trial.state],
        values=list(trial.values) if trial.state == COMPLETE else None,
        params=dict(trial.parameters),
        distributions={name: space[name] for name in trial.parameters},
        intermediate_values=dict(trial.reports),
        user_attrs={"reason": trial.reason} if trial.reason else {},
    )
    if trial.ended_at:
        made.datetime_complete = datetime.fromtimestamp(trial.ended_at)
        made.datetime_start = made.datetime_complete - timedelta(seconds=trial.seconds)
    return made


def _states() -> dict[str, Any]:
    states = load_optuna().trial.TrialState
    return {COMPLETE: states.COMPLETE, PRUNED: states.PRUNED, FAILED: states.FAIL, SKIPPED: states.FAIL}


def distributions(settings: StudySettings) -> dict[str, BaseDistribution]:
    """The space as Optuna has it."""
    return {name: _distribution(each) for name, each in settings.ranges.items()}


def load_optuna() -> Any:
    """Optuna, which talks only when something is wrong."""
    try:
        import optuna
    except ImportError as error:
        raise missing_package("optuna") from error
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
        "cmaes": samplers.CmaEsSampler,
        "nsgaii": samplers.NSGAIISampler,
        "nsgaiii": samplers.NSGAIIISampler,
        "qmc": samplers.QMCSampler,
    }
    # The points of a sequence are of one sequence in all generations.
    seed = _seed(settings.seed, 0 if settings.sampler["name"] == "qmc" else generation)
    # That choices are drawn at random is documented, and no warning to each worker.
    quiet = {"warn_independent_sampling": False} if settings.sampler["name"] in _NEEDS else {}
    made: BaseSampler = _make("sampler", kinds, {**quiet, **settings.sampler, "seed": seed})
    return made


def _make_pruner(settings: StudySettings) -> Any:
    pruners = load_optuna().pruners
    kinds = {
        "median": pruners.MedianPruner,
        "percentile": pruners.PercentilePruner,
        "patient": functools.partial(pruners.PatientPruner, None),
        "halving": pruners.SuccessiveHalvingPruner,
        "hyperband": pruners.HyperbandPruner,
        "threshold": pruners.ThresholdPruner,
        "wilcoxon": pruners.WilcoxonPruner,
    }
    return _make("pruner", kinds, settings.pruner)


def _make(what: str, kinds: Mapping[str, Callable[..., Any]], options: Mapping[str, Any]) -> Any:
    own = {name: value for name, value in options.items() if name != "name"}
    known = [name for name in inspect.signature(kinds[options["name"]]).parameters if name != "seed"]
    said = f"The {what} {options['name']!r} cannot be made:"
    if unknown := sorted(own.keys() - {*known, "seed"}):
        raise SpecError(f"{said} it has no option {unknown[0]!r}.", hint=nearest(unknown[0], known) if known else "")
    try:
        with _quiet():
            return kinds[options["name"]](**own)
    except (TypeError, ValueError, ImportError) as error:
        raise SpecError(f"{said} {str(error).rstrip('.')}.", hint=f"Its options are {', '.join(known)}.") from error


def check_options(settings: StudySettings) -> None:
    """Refuse options that the sampler or the pruner does not have."""
    if (needed := _NEEDS.get(settings.sampler["name"])) and find_spec(needed) is None:
        raise missing_package(needed)
    if "seed" in settings.sampler:
        raise SpecError(
            "The sampler has no seed of its own.", hint=f"Write seed = {settings.sampler['seed']} in [work]."
        )
    _make_sampler(settings, 0)
    if settings.pruner["name"] != "none":
        _make_pruner(settings)
    elif len(settings.pruner) > 1:
        raise SpecError("The pruner 'none' has no options.", hint="Leave out the pruner, or name another.")


def _seed(seed: int, generation: int) -> int:
    digest = hashlib.sha256(f"{seed}:{generation}".encode()).digest()
    return int.from_bytes(digest[:4])


def _quiet() -> warnings.catch_warnings[None]:
    """Silence warnings that an interface of Optuna may change."""
    return warnings.catch_warnings(action="ignore")
