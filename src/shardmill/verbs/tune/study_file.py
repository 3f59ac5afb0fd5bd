"""A study as its file says it, study.toml, and as the work of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shardmill.core.errors import SpecError, UsageError, nearest
from shardmill.core.functions import describe_call
from shardmill.tasks.params import read_params
from shardmill.verbs.tune.file import read_tables
from shardmill.verbs.tune.rehearsal import rehearse
from shardmill.verbs.tune.settings import StudySettings
from shardmill.verbs.tune.space import count_points
from shardmill.verbs.tune.study import TASK

# What a task reads that a trial runs.
_SOURCE = ("source", "query", "format")
_KEYS = ("trials", *_SOURCE, *(name for name in StudySettings.model_fields if name not in ("space", "code")))


def read_study_file(
    study: str | os.PathLike[str] | Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `[work]` and `[execution]` of the run of a study: a TOML file, or its tables.

    `changes` replace keys of its `[work]`, unless they are None.
    """
    tables = study if isinstance(study, Mapping) else read_tables(study)
    given = {**tables.get("work", {}), **{name: value for name, value in changes.items() if value is not None}}
    if unknown := sorted(given.keys() - {*_KEYS}):
        raise SpecError(f"[work] of a study has no key {unknown[0]!r}.", hint=nearest(unknown[0], list(_KEYS)))
    if given.get("call"):
        given |= describe_call(given["call"])
    trials = given.pop("trials", None)
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        seen = "No number of trials was given." if trials is None else f"trials is {trials!r}."
        raise UsageError(seen, hint="Write trials = 60 in [work], or pass --trials 60.")
    source = {name: given.pop(name) for name in _SOURCE if name in given}
    settings = read_params(StudySettings, {**given, "space": tables.get("space", {})}, TASK)
    if source and not settings.task:
        raise SpecError("A study of an objective reads no source.", hint=f"Leave out {', '.join(source)}.")
    if settings.sampler["name"] == "grid" and trials > (points := count_points(settings.ranges)):
        raise SpecError(
            f"trials is {trials}, and the grid of this space has {points}.",
            hint=f"Write trials = {points} in [work], or pass --trials {points}.",
        )
    rehearse(settings)
    work = {
        **source,
        "items": trials,
        "task": TASK,
        "params": settings.model_dump(mode="json", exclude_defaults=True),
        "wave": settings.generation,
    }
    return work, dict(tables.get("execution", {}))
