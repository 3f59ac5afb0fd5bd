"""The options of `refresh`."""

from __future__ import annotations

from pydantic import field_validator

from shardmill.plan.execution import (
    Computing,
    ErrorLimits,
    Following,
    NamedEngineOptions,
    Placing,
    Serving,
    ShardLimits,
)
from shardmill.plan.limits import parse_duration
from shardmill.plan.options import OTHER, RESULT, CallOptions, option
from shardmill.plan.shared import OfRun, Printing, Telling, Trusting


class Refreshing(CallOptions):
    """What becomes of the items of the source."""

    dry_run: bool = option(
        False, "Count what would be computed, with its price; write nothing.", group=OTHER, common=True
    )
    every: str | None = option(
        None,
        "Refresh again and again, this long from the beginning of one to that of the next: 15m, 1h, 1d.",
        group=OTHER,
        metavar="TIME",
        common=True,
    )
    keep_editions: int | None = option(
        None,
        "Delete older editions afterwards, as `prune` does: N stay, the current one included.",
        group=RESULT,
        metavar="N",
        ge=1,
    )
    allow_shrink: bool = option(False, "Accept a source of which less than half is left.", group=RESULT, common=True)

    @field_validator("every")
    @classmethod
    def _is_time(cls, value: str | None) -> str | None:
        if value is not None and parse_duration(value) < 1:
            raise ValueError(f"{value!r} is less than a second")
        return value


class RefreshOptions(
    OfRun,
    Refreshing,
    Telling,
    Trusting,
    Printing,
    Placing,
    NamedEngineOptions,
    Serving,
    Following,
    ErrorLimits,
    Computing,
    ShardLimits,
):
    """What `refresh` takes."""
