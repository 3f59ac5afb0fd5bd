"""A training run with what a study of it found best."""

from __future__ import annotations

from typing import Any

from shardmill.core.console import say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import UsageError
from shardmill.run.result import Run


def best_training(place: str) -> dict[str, Any]:
    """The work of a training run with the source of a study and the options of its best trial."""
    run = Run(place)
    study = run.study()
    if study.settings.task != "train":
        raise UsageError(f"{place} is a study not of train, but of {study.settings.call or study.settings.task}.")
    if not study.best:
        raise UsageError(f"No trial of {place} has a result.", hint=f"See: {shell_command('study', place)}")
    if (among := len(study.best)) > 1:
        say(f"Of {place}, {among} trials are best, as none beats another: trial {study.best[0].number} is trained.")
    work = run.plan.work
    read = {name: value for name in ("query", "format") if (value := getattr(work, name))}
    return {**read, "source": list(work.source), "params": {**study.settings.params, **study.best[0].parameters}}
