"""The parameters of the `generate` task, which are options of its verb."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import Field

from shardmill.core.permission import KEY_VARIABLE
from shardmill.plan.options import ANSWER, MODEL, Params, option
from shardmill.plan.shared import AdapterParams, TranslationParams

if TYPE_CHECKING:
    from shardmill.models.decoding.options import GenerationOptions


class ReplyParams(Params):
    """How a generative model replies.

    Without a `temperature` the likeliest tokens are taken; with one, `seed` and the prompt decide the draws.
    """

    system: str = option("", "What the model is told before each prompt.", group=ANSWER, metavar="TEXT")
    max_tokens: int = option(
        256,
        "Tokens of an answer at most.",
        group=ANSWER,
        metavar="N",
        common=True,
        shown="256, or what an encoder-decoder model says itself",
        ge=1,
    )
    temperature: float | None = option(
        None,
        "Sampling temperature; 1 leaves the probabilities unchanged.",
        group=ANSWER,
        metavar="T",
        common=True,
        shown="none: the likeliest token is taken",
        gt=0,
        lt=100,
    )
    top_k: int = option(0, "Sample among the K likeliest tokens.", group=ANSWER, metavar="K", ge=0)
    top_p: float = option(
        1.0,
        "Nucleus sampling: the smallest set of tokens with probability P.",
        group=ANSWER,
        metavar="P",
        gt=0,
        le=1,
    )
    min_p: float = option(
        0.0,
        "Sample among tokens with at least P times the probability of the likeliest.",
        group=ANSWER,
        metavar="P",
        ge=0,
        le=1,
    )
    repetition_penalty: float | None = option(
        None,
        "Penalty on tokens that the prompt or the answer already has; 1 for none.",
        group=ANSWER,
        metavar="X",
        shown="the model's own",
        gt=0,
    )
    seed: int = option(
        0, "Random seed; an item's answer depends on it and the prompt.", group=ANSWER, metavar="SEED", ge=0
    )
    beams: int = option(
        1, "Beam search with N beams.", group=ANSWER, metavar="N", shown="the model's own, else 1", ge=1
    )
    answers: int = option(
        1, "Answers to each prompt, drawn with a --temperature; columns become lists.", group=ANSWER, metavar="N", ge=1
    )
    log_probabilities: bool = option(
        False, "Add a column with the log-probability of each token of an answer.", group=ANSWER
    )
    stop: tuple[str, ...] = option(
        (), "Where an answer ends; repeatable.", group=ANSWER, metavar="TEXT", accepts="Sequence[str]", repeats=True
    )


class ModelParams(ReplyParams, TranslationParams, AdapterParams):
    """The model that replies, and how."""

    model: str = option(
        "",
        "A model that generates: a folder, its URL (s3://…), a hub name, or its name on the --endpoint.",
        group=MODEL,
        metavar="MODEL",
        common=True,
        needed=True,
        min_length=1,
    )


class GenerateParams(ModelParams):
    """The parameters of the task.

    `messages` says that a text is a conversation, as JSON. `response_schema` is a JSON schema that answers must fit.
    `template_arguments` are given to the model's chat template.
    With an `endpoint`, `model` is the name that the server knows, and `key_variable` the environment variable with its
    key.
    """

    endpoint: str = ""
    key_variable: str = KEY_VARIABLE
    messages: bool = False
    response_schema: dict[str, Any] | None = None
    template_arguments: dict[str, Any] = Field(default_factory=dict)

    def options(self) -> GenerationOptions:
        """How to answer."""
        from shardmill.models.decoding.options import GenerationOptions

        schema = self.response_schema
        return GenerationOptions(
            max_new_tokens=self.max_tokens,
            system=self.system,
            beams=self.beams,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            stops=self.stop,
            source_language=self.source_language,
            target_language=self.target_language,
            schema=None if schema is None else json.dumps(schema),
            min_p=self.min_p,
            answers=self.answers,
            log_probabilities=self.log_probabilities,
            template_arguments=self.template_arguments,
        )
