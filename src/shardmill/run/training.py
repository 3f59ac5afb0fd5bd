"""The work of a training run: its source is one item, and the task reads the columns of its rows."""

from __future__ import annotations

from typing import Any

from shardmill.console import say
from shardmill.errors import SpecError, UsageError
from shardmill.run.result import Run
from shardmill.sources import ALL
from shardmill.tasks.params import read_params
from shardmill.training.options import TrainOptions
from shardmill.tuning.settings import StudySettings

COLUMNS = ("anchor", "positive")


def settle_training(work: dict[str, Any], execution: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both tables of a spec whose task is `train`, with what follows from the task's parameters.

    `max_errors` is about rows of the source here; of the one item, none may fail.
    """
    params = {"columns": COLUMNS, **work.get("params", {})}
    if limit := execution.get("max_errors"):
        params["max_errors"] = limit
    options = read_params(TrainOptions, params, "train")
    wanted = (*options.columns, *filter(None, (options.label, options.split_by)))
    settled = {
        **work,
        "text": options.columns[0],
        "fields": tuple(dict.fromkeys(wanted)),
        "group_by": ALL,
        "params": {**params, "columns": list(options.columns)},
    }
    others = {name: value for name, value in execution.items() if name != "max_errors"}
    # SSH hosts say themselves how many workers they have.
    return settled, others if others.get("engine") == "ssh" else {"workers": 1, **others}


def settle_study(work: dict[str, Any]) -> dict[str, Any]:
    """The work of a study; if its trials are training runs, all of them get the rows of its source."""
    if (task := work["params"].get("task")) != "train":
        if work.get("source"):
            raise SpecError(
                f"Only a study of train reads a source, and this one is of {task!r}.",
                hint='Write task = "train", or leave out the source.',
            )
        return work
    if not work.get("source"):
        raise SpecError("No source was given.", hint='Name the pairs: source = "pairs.jsonl" in [work].')
    settings = StudySettings(**work["params"])
    settled, _ = settle_training({"params": {**settings.params, **settings.example}}, {})
    for name, value, point in settings.corners():
        try:
            settle_training({"params": {**settings.params, **point}}, {})
        except SpecError as error:
            raise SpecError(f"space.{name} = {value!r}: {error.message}", hint=error.hint) from error
    fixed = {"columns": settled["params"]["columns"], **settings.params}
    read = {name: settled[name] for name in ("text", "fields", "group_by")}
    return {**work, **read, "params": {**work["params"], "params": fixed}}


def best_training(place: str) -> dict[str, Any]:
    """The work of a training run with the source of a study and the options of its best trial."""
    run = Run(place)
    study = run.study()
    if study.settings.task != "train":
        raise UsageError(f"{place} is no study of train, but of {study.settings.call or study.settings.task}.")
    if not study.best:
        raise UsageError(f"No trial of {place} has a result.", hint=f"See: shardmill study {place}")
    if (among := len(study.best)) > 1:
        say(f"Of {place}, {among} trials are best, as none beats another: trial {study.best[0].number} is trained.")
    work = run.plan.work
    read = {name: value for name in ("query", "format") if (value := getattr(work, name))}
    return {**read, "source": list(work.source), "params": {**study.settings.params, **study.best[0].parameters}}
