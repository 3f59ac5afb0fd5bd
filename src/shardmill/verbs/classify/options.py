"""The options of `classify`."""

from __future__ import annotations

from shardmill.plan.shared import Keeping, ReadingTexts, Renewing, RunOptions, Storing, TakingPart
from shardmill.verbs.classify.params import ClassifyParams


class ClassifyOptions(ReadingTexts, TakingPart, ClassifyParams, Storing, Keeping, RunOptions, Renewing):
    """What `classify` takes."""
