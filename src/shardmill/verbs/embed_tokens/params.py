"""The parameters of the `embed-tokens` task, which are options of its verb."""

from __future__ import annotations

from typing import Literal

from shardmill.plan.options import MODEL, RESULT, Params, option


class EmbedTokensParams(Params):
    """The model, the prompt, the maximum length, and the type of the vectors."""

    model: str = option(
        "",
        "A ColBERT model of sentence-transformers, PyLate or colbert-ai: a folder, its URL (s3://…), or a hub name.",
        group=MODEL,
        metavar="MODEL",
        common=True,
        needed=True,
        min_length=1,
    )
    prompt: str | None = option(
        None, "The name of one of the model's prompts, or a text to put first.", group=MODEL, metavar="PROMPT"
    )
    max_tokens: int | None = option(
        None, "Tokens of a text at most.", group=MODEL, metavar="N", shown="the model's limit", ge=1
    )
    dtype: Literal["float16", "float32"] = option("float16", "The type of the vectors.", group=RESULT)
