"""The work of a study: what its trials read, and how they are run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shardmill.core.errors import SpecError
from shardmill.plugins import find_verb
from shardmill.run.carrying import carry_out
from shardmill.run.request import Request
from shardmill.run.result import Run
from shardmill.verbs.tune.settings import StudySettings
from shardmill.verbs.tune.study_file import read_study_file

Place = str | os.PathLike[str]


def start(request: Request) -> Run:
    """Run every trial of a study."""
    options = request.options
    changes = {"call": options.call, "trials": options.trials}
    return tune_study(options.study, changes, request.execution, request.out, **request.how)


def tune_study(
    study: Place | Mapping[str, Any],
    changes: Mapping[str, Any],
    execution: dict[str, Any],
    out: Place | None = None,
    **how: Any,
) -> Run:
    """Run the trials of a study; `changes` replace keys of its `[work]`, `execution` those of its `[execution]`."""
    work, own = read_study_file(study, changes)
    return carry_out(settle_study(work), {**own, **execution}, out, **how)


def settle_study(work: dict[str, Any]) -> dict[str, Any]:
    """The work of a study; if its trials are runs of a task over a source, all of them get the rows of that source."""
    task = work["params"].get("task") or ""
    verb = find_verb(task)
    if not verb.tunable:
        if work.get("source"):
            raise SpecError(
                f"Only a study of train reads a source, and this one is of {task or None!r}.",
                hint='Write task = "train", or leave out the source.',
            )
        return work
    if not work.get("source"):
        raise SpecError("No source was given.", hint='Name the pairs: source = "pairs.jsonl" in [work].')
    settings, settle = StudySettings(**work["params"]), verb.part("settle")
    settled, _ = settle({"params": {**settings.params, **settings.example}}, {})
    for name, value, point in settings.corners():
        try:
            settle({"params": {**settings.params, **point}}, {})
        except SpecError as error:
            raise SpecError(f"space.{name} = {value!r}: {error.message}", hint=error.hint) from error
    fixed = {"columns": settled["params"]["columns"], **settings.params}
    read = {name: settled[name] for name in ("text", "fields", "group_by")}
    return {**work, **read, "params": {**work["params"], "params": fixed}}
