"""The options of `embed`."""

from __future__ import annotations

from shardmill.plan.shared import AllowingCode, Keeping, ReadingTexts, Renewing, RunOptions, TakingPart
from shardmill.verbs.embed.params import EmbedParams


class EmbedOptions(ReadingTexts, TakingPart, EmbedParams, AllowingCode, Keeping, RunOptions, Renewing):
    """What `embed` takes."""
