"""The options of `run`."""

from __future__ import annotations

from shardmill.plan.execution import Indexing, Transacting
from shardmill.plan.options import FUNCTION, CallOptions, WorkOptions, option
from shardmill.plan.shared import (
    AllowingCode,
    Keeping,
    ReadingTexts,
    Renewing,
    RunOptions,
    Storing,
    TableLayout,
    TakingPart,
)


class Choosing(WorkOptions):
    """Which task is run."""

    task: str = option(
        "", "A task's name, or package.module:Class for your own.", group=FUNCTION, metavar="TASK", common=True
    )


class TaskParameters(CallOptions):
    """The parameters of the task, by name."""

    param: tuple[str, ...] = option(
        (),
        "A parameter of the task, as TOML; repeatable.",
        group=FUNCTION,
        metavar="KEY=VALUE",
        only="command",
        common=True,
        repeats=True,
    )


class AnyTaskOptions(
    Choosing,
    TaskParameters,
    ReadingTexts,
    TakingPart,
    Storing,
    TableLayout,
    Indexing,
    AllowingCode,
    Keeping,
    RunOptions,
    Transacting,
):
    """Options of whatever task there is."""


class RunTaskOptions(AnyTaskOptions, Renewing):
    """What `run` takes."""
