"""The parameters of the `answer` task, which are options of its verb and of `ask`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shardmill.core.permission import KEY_VARIABLE
from shardmill.plan.options import MODEL, PASSAGES, Params, option
from shardmill.plan.values import Place

By = Literal["both", "meaning", "words"]


class FindingParams(Params):
    """The parameters that people give: where the passages are, how they are found, and what reads them.

    `over` is an embed run or the URL of a table. `model` says where the model of its vectors is on this machine, if it
    has moved. `null_threshold` is SQuAD 2.0's: there is no answer if its score beats the best span's by more.
    """

    over: Place = option(
        "",
        "The embed run with the passages, or a table: postgresql://HOST/DB/TABLE.",
        group=PASSAGES,
        metavar="RUN",
        common=True,
        accepts="Place",
        needed=True,
        min_length=1,
    )
    by: By = option("both", "Find passages by meaning, words, or both, fused by rank.", group=PASSAGES, metavar="HOW")
    k: int = option(
        10, "Number of passages found for each question.", group=PASSAGES, metavar="N", flags=("-k",), ge=1, le=1000
    )
    rerank: str | None = option(
        None,
        "A cross-encoder or causal re-ranker that ranks four times as many passages again.",
        group=PASSAGES,
        metavar="MODEL",
    )
    reader: str | None = option(
        None,
        "An extractive question-answering model, which finds the span of the answer.",
        group=MODEL,
        metavar="MODEL",
        common=True,
    )
    generator: str | None = option(
        None,
        "A generative model, which writes the answer and cites its passages; with --endpoint, its name on the server.",
        group=MODEL,
        metavar="MODEL",
        common=True,
    )
    null_threshold: float = option(
        0.0,
        'With --reader: how much the score of "no answer" must exceed that of the best span.',
        group=MODEL,
        metavar="X",
        shown="0",
    )
    model: str | None = option(
        None,
        "The folder of the model that the passages were embedded with, if it has moved.",
        group=MODEL,
        metavar="MODEL",
    )


class AnswerParams(FindingParams):
    """The parameters of the task.

    With an `endpoint`, `generator` is the name that the server knows, and `key_variable` the environment variable with
    its key. New plans set `named_types` where it matters: pairs have types only if their tokenizer names them.
    """

    endpoint: str = ""
    key_variable: str = KEY_VARIABLE
    answer_tokens: int = Field(30, ge=1)
    named_types: bool = False
