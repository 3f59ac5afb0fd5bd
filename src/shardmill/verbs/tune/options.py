"""The options of `tune` and of `study`."""

from __future__ import annotations

from typing import Any

from shardmill.plan.execution import Detaching, ErrorLimits, Following, NamedEngineOptions, Placing
from shardmill.plan.options import RESULT, STUDY, CallOptions, option
from shardmill.plan.shared import IntoFolder, Printing, Resuming
from shardmill.plan.values import Place


class Studying(CallOptions):
    """The study, and what replaces keys of its file."""

    study: Any = option(
        ...,
        "A TOML file with [work] and [space]: a path or a URL.",
        metavar="STUDY",
        argument=True,
        accepts="Place | Mapping[str, Any]",
        needed=True,
    )
    call: Any = option(
        None,
        "The objective, instead of the file's: package.module:function or file.py:function.",
        group=STUDY,
        metavar="CALL",
        common=True,
        accepts="str | Callable[..., Any]",
    )
    trials: int | None = option(
        None, "Number of trials, instead of the file's.", group=STUDY, metavar="N", common=True, ge=1
    )


class TuneOptions(Studying, Placing, NamedEngineOptions, Detaching, Following, ErrorLimits, IntoFolder, Resuming):
    """What `tune` takes."""


class Journaling(CallOptions):
    """The study to look at."""

    run: Place = option(..., "The run folder: a path or a URL.", metavar="RUN", argument=True)
    journal: str = option(
        "",
        "Write Optuna's journal, for optuna-dashboard: a path or a URL.",
        group=RESULT,
        metavar="FILE",
        common=True,
    )


class StudyOptions(Journaling, Printing):
    """What `study` takes."""
