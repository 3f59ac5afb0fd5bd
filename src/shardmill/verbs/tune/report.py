"""A study in a report: the best trials, how the search went, and what mattered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardmill.core.console import count, duration
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.run.reports.shape import Chart, Grid, Points, Section
from shardmill.run.status.state import Status
from shardmill.verbs.tune.space import Choices, NumberRange, Value
from shardmill.verbs.tune.study import StudyResult, read_study
from shardmill.verbs.tune.trial import COMPLETE, FAILED, Trial

_MOST_TRIALS, _MOST_SLICES = 100, 12


@dataclass(frozen=True, slots=True)
class StudyAccount:
    """A study, as its report tells of it."""

    study: StudyResult
    name: ClassVar[str] = "study"

    def headline(self) -> tuple[tuple[str, str], ...]:
        return study_figures(self.study)

    def section(self) -> Section:
        return describe_study(self.study)

    def to_json(self) -> dict[str, Any]:
        return self.study.to_json()


def read_study_account(ledger: Ledger, plan: Plan, status: Status) -> StudyAccount:
    return StudyAccount(read_study(ledger, plan))


def describe_study(study: StudyResult) -> Section:
    """The study as a section; slices and importances are those of the first metric."""
    whole = [trial for trial in study.trials if trial.state == COMPLETE]
    metric, ranges = next(iter(study.settings.metrics)), study.settings.ranges
    states = dict.fromkeys(trial.state for trial in study.trials)
    ended = ", ".join(f"{study.count(state):,} {state}" for state in states) or "none"
    shown = sorted(whole, key=lambda trial: tuple(trial.values), reverse=study.settings.metrics[metric] == "maximize")
    rest = [trial for trial in study.trials if trial.state != COMPLETE]
    points = (
        _history(study, whole, metric),
        *(_slice(whole, metric, n, ranges[n]) for n in list(ranges)[:_MOST_SLICES]),
    )
    return Section(
        "The study",
        facts=_facts(study),
        charts=_importances(study),
        points=points if len(whole) > 1 else (),
        grids=(_grid(study, [*shown, *rest][:_MOST_TRIALS]),) if study.trials else (),
        notes=(f"{len(study.trials):,} of {count(study.planned, 'trial')} ended: {ended}.", *_cut(study)),
    )


def study_figures(study: StudyResult) -> tuple[tuple[str, str], ...]:
    """What most readers want to know of a study, with names."""
    metric, best = next(iter(study.settings.metrics)), study.best
    return (
        ("trials", f"{len(study.trials):,} of {study.planned:,}"),
        ("failed trials", f"{study.count(FAILED):,}"),
        (f"best {metric}", _number(best[0].values[0])) if len(best) == 1 else ("best trials", f"{len(best):,}"),
    )


def _facts(study: StudyResult) -> tuple[tuple[str, str], ...]:
    if len(study.best) != 1:
        return (("best trials", ", ".join(str(trial.number) for trial in study.best[:_MOST_TRIALS]) or "none"),)
    best = study.best[0]
    return (
        ("best trial", str(best.number)),
        *((name, _number(value)) for name, value in zip(study.settings.metrics, best.values, strict=True)),
        *((name, _number(value)) for name, value in best.parameters.items()),
    )


def _cut(study: StudyResult) -> tuple[str, ...]:
    if len(study.trials) <= _MOST_TRIALS:
        return ()
    return (f"The table has {_MOST_TRIALS} of them, the best first. All: shardmill study RUN --json",)


def _importances(study: StudyResult) -> tuple[Chart, ...]:
    shares = study.importances
    title = "How much each parameter matters for being among the best"
    return (Chart(title, tuple(shares.values()), tuple(shares), bars=True),) if shares else ()


def _history(study: StudyResult, whole: Sequence[Trial], metric: str) -> Points:
    pick = min if study.settings.metrics[metric] == "minimize" else max
    values = [trial.values[0] for trial in whole]
    best = tuple(pick(values[: i + 1]) for i in range(len(values)))
    return Points(f"{metric} by trial, and the best so far", tuple(t.number for t in whole), tuple(values), best)


def _slice(whole: Sequence[Trial], metric: str, name: str, each: NumberRange | Choices) -> Points:
    values, tried = tuple(t.values[0] for t in whole), [t.parameters[name] for t in whole]
    title = f"{metric} by {name}"
    if isinstance(each, Choices):
        labels = tuple(map(str, each.values))
        return Points(title, tuple(each.values.index(value) for value in tried), values, labels=labels)
    return Points(title, tuple(float(value) for value in tried), values, log=each.log)


def _grid(study: StudyResult, trials: Sequence[Trial]) -> Grid:
    metrics, names = list(study.settings.metrics), list(study.settings.space)
    rows = tuple(
        (
            str(trial.number),
            trial.state,
            *(_number(value) for value in [*trial.values, *[None] * (len(metrics) - len(trial.values))]),
            *(_number(trial.parameters.get(name)) for name in names),
            duration(trial.seconds),
            trial.reason,
        )
        for trial in trials
    )
    header = ("trial", "state", *metrics, *names, "time", "reason")
    return Grid(header, rows, (0, *range(2, 2 + len(metrics))))


def _number(value: Value | None) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
