"""The options of `apply`."""

from __future__ import annotations

from typing import Any, Literal

from shardmill.plan.execution import Computing, PlacingOnCpu, Transacting
from shardmill.plan.options import FUNCTION, LIMITS, CallOptions, option
from shardmill.plan.shared import Keeping, Reading, Renewing, RunOptions, Storing, TakingPart
from shardmill.plan.values import NAMES, Names


class ItemsForFunction(Reading):
    """What is read for a function, which may need no text."""

    text: str = option(
        "", 'Also give it a column `text`, made from a template: "{title}: {body}".', group=FUNCTION, metavar="TEMPLATE"
    )


class CalledFunction(CallOptions):
    """The function, and what it is given."""

    call: Any = option(
        "",
        "The function or class: package.module:function, or file.py:function.",
        group=FUNCTION,
        metavar="NAME",
        common=True,
        accepts="str | Callable[..., Any]",
        positional=True,
        needed=True,
    )
    column: Names = option(
        (),
        "A column to give it; repeatable.",
        group=FUNCTION,
        metavar="COLUMN",
        shown="all",
        common=True,
        accepts=NAMES,
        repeats=True,
    )
    batch: int | None = option(
        None, "Items per call at most.", group=FUNCTION, metavar="N", shown="1024", common=True, ge=1
    )
    param: tuple[str, ...] = option(
        (),
        "A keyword argument of the function, as TOML; repeatable.",
        group=FUNCTION,
        metavar="KEY=VALUE",
        only="command",
        common=True,
        repeats=True,
    )
    arguments: dict[str, Any] = option(
        {}, "Keyword arguments of the function.", group=FUNCTION, only="python", accepts="Mapping[str, Any]"
    )


class ComputingOfFunction(Computing):
    """How a worker computes; a function decides most of it by itself."""

    precision: Literal["auto", "float32"] = option(
        "auto", "auto, or float32 for exact arithmetic at less speed.", group=LIMITS, only="python"
    )
    batch_tokens: int | None = option(
        None, "Items per call at most; `batch` is the usual name.", group=LIMITS, only="python", ge=1
    )


class ApplyOptions(
    ItemsForFunction,
    TakingPart,
    CalledFunction,
    ComputingOfFunction,
    Storing,
    Keeping,
    PlacingOnCpu,
    RunOptions,
    Renewing,
    Transacting,
):
    """What `apply` takes."""
