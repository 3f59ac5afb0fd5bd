"""The options of `embed-sparse`."""

from __future__ import annotations

from shardmill.plan.shared import Keeping, ReadingTexts, Renewing, RunOptions, TakingPart
from shardmill.verbs.embed_sparse.params import EmbedSparseParams


class EmbedSparseOptions(ReadingTexts, TakingPart, EmbedSparseParams, Keeping, RunOptions, Renewing):
    """What `embed-sparse` takes."""
