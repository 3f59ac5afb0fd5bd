"""The parameters of the `embed-sparse` task, which are options of its verb."""

from __future__ import annotations

from shardmill.plan.options import MODEL, RESULT, Params, option


class EmbedSparseParams(Params):
    """The model, the prompt, the maximum length, and how many words a row has."""

    model: str = option(
        "",
        "A SparseEncoder of sentence-transformers (SPLADE), or a masked language model: a folder, its URL (s3://…), or "
        "a hub name.",
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
    max_active_dims: int | None = option(
        None,
        "Keep the N words with the largest weights of a text.",
        group=RESULT,
        metavar="N",
        shown="the model's limit, or all",
        ge=1,
    )
