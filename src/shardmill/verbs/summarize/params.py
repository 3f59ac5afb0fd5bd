"""The parameters of the `summarize` task, which are options of its verb."""

from __future__ import annotations

from typing import Literal

from shardmill.core.permission import KEY_VARIABLE
from shardmill.plan.options import ANSWER, MODEL, RESULT, option
from shardmill.plan.shared import TranslationParams


class SummaryParams(TranslationParams):
    """The parameters that people give: the method and its model, the number of sentences, a column with references.

    `extractive` chooses that many sentences. `generative` asks a model for them, in at most `max_tokens`; the other
    parameters are those of `generate`, `prompt` is the text put first, and longer texts are cut into windows of
    `window_tokens`.
    """

    method: Literal["extractive", "generative"] = option(
        "extractive",
        "extractive (sentences of the text) or generative (a model writes).",
        group=MODEL,
        metavar="METHOD",
        shown="what the model can do",
    )
    model: str = option(
        "",
        "A model that embeds or one that generates: a folder, its URL (s3://…), or a hub name; "
        "with --endpoint, its name on the server.",
        group=MODEL,
        metavar="MODEL",
        common=True,
    )
    sentences: int = option(3, "Sentences in a summary.", group=RESULT, metavar="N", common=True, ge=1, le=1_000)
    reference: str | None = option(
        None,
        "A column with reference summaries: adds ROUGE-1, 2, L and Lsum to rows and report.",
        group=RESULT,
        metavar="COLUMN",
    )
    prompt: str | None = option(None, "With a generative model: the text to put first.", group=MODEL, metavar="PROMPT")
    window_tokens: int | None = option(
        None,
        "With a generative model: cut texts into windows of N tokens.",
        group=MODEL,
        metavar="N",
        shown="the model's limit",
        ge=16,
    )
    max_tokens: int = option(
        128,
        "With a generative model: tokens of a summary at most.",
        group=ANSWER,
        metavar="N",
        shown="128, or what an encoder-decoder model says itself",
        ge=1,
    )
    temperature: float | None = option(
        None,
        "Sampling temperature; 1 leaves the probabilities unchanged.",
        group=ANSWER,
        metavar="T",
        shown="none: the likeliest token is taken",
        gt=0,
        lt=100,
    )
    seed: int = option(0, "Random seed; a summary depends on it and the prompt.", group=ANSWER, metavar="SEED", ge=0)
    beams: int = option(
        1, "Beam search with N beams.", group=ANSWER, metavar="N", shown="the model's own, else 1", ge=1
    )


class SummarizeParams(SummaryParams):
    """The parameters of the task.

    With `lead`, earlier sentences are preferred, as in news: texts that are joined from several have no such order.
    `rouge` is the way to compute it, which the verb settles: 1, that of runs that do not say, has words of ASCII alone
    and no Lsum.
    """

    lead: bool = True
    rouge: Literal[1, 2] = 1
    endpoint: str = ""
    key_variable: str = KEY_VARIABLE
