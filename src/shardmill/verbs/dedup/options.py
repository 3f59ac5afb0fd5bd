"""The options of `dedup`."""

from __future__ import annotations

from shardmill.plan.execution import ErrorLimits, Following, NamedEngineOptions, PlacingOnCpu, ShardLimits
from shardmill.plan.options import FUNCTION, CallOptions, option
from shardmill.plan.shared import Keeping, ReadingTexts, Starting, TakingPart


class Likeness(CallOptions):
    """Which texts are alike."""

    threshold: float = option(
        0.8,
        "Least Jaccard similarity of two duplicates: the estimated share of three-word shingles they have in common.",
        group=FUNCTION,
        metavar="X",
        common=True,
    )
    exact: bool = option(
        False,
        "Only remove texts that are equal, apart from case and punctuation.",
        group=FUNCTION,
        common=True,
    )
    strip_markup: bool = option(
        False,
        "Compare the texts without tags, comments, scripts and styles of HTML or XML; they are kept as they are.",
        group=FUNCTION,
        common=True,
    )


class DedupOptions(
    ReadingTexts,
    TakingPart,
    Likeness,
    Keeping,
    PlacingOnCpu,
    NamedEngineOptions,
    Following,
    ErrorLimits,
    ShardLimits,
    Starting,
):
    """What `dedup` takes."""
