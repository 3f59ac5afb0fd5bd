"""The options of `summarize`."""

from __future__ import annotations

from shardmill.plan.execution import Pricing, Serving
from shardmill.plan.options import RESULT, WorkOptions, option
from shardmill.plan.shared import Keeping, ReadingTexts, Renewing, RunOptions, Storing, TakingPart
from shardmill.verbs.summarize.params import SummaryParams


class Grouping(WorkOptions):
    """Groups of items."""

    group_by: str = option(
        "",
        "Also summarize the summaries of all items that share this column.",
        group=RESULT,
        metavar="COLUMN",
        common=True,
    )


class SummarizeOptions(
    ReadingTexts, TakingPart, SummaryParams, Grouping, Serving, Storing, Keeping, RunOptions, Renewing, Pricing
):
    """What `summarize` takes."""
