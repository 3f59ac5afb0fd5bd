"""The options of `embed-tokens`."""

from __future__ import annotations

from shardmill.plan.shared import Keeping, ReadingTexts, Renewing, RunOptions, TakingPart
from shardmill.verbs.embed_tokens.params import EmbedTokensParams


class EmbedTokensOptions(ReadingTexts, TakingPart, EmbedTokensParams, Keeping, RunOptions, Renewing):
    """What `embed-tokens` takes."""
