"""The options of `score`."""

from __future__ import annotations

from shardmill.plan.options import SOURCE, CallOptions, option
from shardmill.plan.shared import Keeping, ReadingTexts, Renewing, RunOptions, TakingPart
from shardmill.verbs.score.params import RerankerParams


class QueryOptions(CallOptions):
    """What the texts are scored for."""

    query_text: str = option(
        "",
        'The query, or the first text of each pair: a field, or a template ("{title}: {question}").',
        group=SOURCE,
        metavar="FIELD",
        common=True,
    )


class ScoreOptions(ReadingTexts, TakingPart, QueryOptions, RerankerParams, Keeping, RunOptions, Renewing):
    """What `score` takes."""
