"""The options of `embed`."""

from __future__ import annotations

from shardmill.plan.execution import ComputingVectors
from shardmill.plan.shared import (
    AllowingCode,
    Keeping,
    ReadingPictures,
    ReadingTexts,
    Renewing,
    RunOptions,
    TakingPart,
)
from shardmill.verbs.embed.params import EmbedParams


class EmbedOptions(  # type: ignore[misc]
    ComputingVectors,
    ReadingTexts,
    ReadingPictures,
    TakingPart,
    EmbedParams,
    AllowingCode,
    Keeping,
    RunOptions,
    Renewing,
):
    """What `embed` takes."""
