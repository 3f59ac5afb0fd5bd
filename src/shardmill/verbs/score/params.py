"""The parameters of the `score` task, which are options of its verb."""

from __future__ import annotations

from shardmill.plan.options import MODEL, SOURCE, option
from shardmill.plan.shared import AdapterParams


class RerankerParams(AdapterParams):
    """The model, its prompt, and the maximum length of a pair."""

    model: str = option(
        "",
        "A re-ranker: a folder of a cross-encoder or a causal re-ranker, its URL (s3://…), or a hub name.",
        group=MODEL,
        metavar="MODEL",
        common=True,
        needed=True,
        min_length=1,
    )
    prompt: str | None = option(
        None,
        "The name of one of the model's prompts, or a text: the instruction of a causal re-ranker.",
        group=MODEL,
        metavar="PROMPT",
    )
    max_tokens: int | None = option(
        None, "Tokens of a pair at most; the longer text is cut.", group=MODEL, metavar="N", shown="the model's", ge=8
    )
    candidates: str = option(
        "",
        "The column with a list of texts, in place of --text: each gets a score, in their order.",
        group=SOURCE,
        metavar="COLUMN",
        common=True,
    )


class ScoreParams(RerankerParams):
    """The parameters of the task.

    The text of an item is the second of a pair and `query_text` makes the first; with `candidates` it is the query.
    """

    query_text: str = ""
