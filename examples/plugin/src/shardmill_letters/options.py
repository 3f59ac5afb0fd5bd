"""The options of `count`."""

from __future__ import annotations

from shardmill.plan.options import Params, option
from shardmill.plan.shared import Keeping, ReadingTexts, RunOptions


class CountParams(Params):
    """The parameters of the task."""

    shortest: int = option(1, "Count words of at least N letters.", metavar="N", common=True, ge=1)


class CountOptions(ReadingTexts, CountParams, Keeping, RunOptions):
    """What `count` takes."""
