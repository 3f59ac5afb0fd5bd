"""What a caller asks of a generation, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardmill.core.errors import UsageError

# What a chat template is given in any case, by the names of transformers.
_GIVEN_TO_TEMPLATES = {
    *("messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"),
    *("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    *("tokenizer_kwargs",),
}
# A text, or a conversation: messages with a "role" and a "content" each.
Asked = str | Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How to answer. The likeliest tokens are taken, unless there are `beams` or a `temperature`.

    `seed` and the item decide the draws. Without a `repetition_penalty` it is the model's own.
    A text ends before the first of `stops`. `schema` is a JSON schema, as text. A model that translates is told the
    languages by their codes. `answers` are drawn for each prompt; `log_probabilities` are told of each new token.
    `template_arguments` are for the model's chat template.
    """

    max_new_tokens: int = 256
    system: str = ""
    beams: int = 1
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float | None = None
    seed: int = 0
    stops: tuple[str, ...] = ()
    schema: str | None = None
    source_language: str = ""
    target_language: str = ""
    min_p: float = 0.0
    answers: int = 1
    log_probabilities: bool = False
    template_arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.beams < 1:
            raise UsageError("The number of new tokens and of beams is at least 1.")
        if self.temperature is not None and not 0 < self.temperature < 100:
            raise UsageError(f"A temperature of {self.temperature} is not between 0 and 100.")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UsageError("top_k is 0 (no limit) or more, and top_p is above 0 and at most 1.")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min_p must be between 0 and 1 (got {self.min_p}).")
        if self.answers < 1:
            raise UsageError(f"The number of answers must be at least 1 (got {self.answers}).")
        if self.answers > 1 and self.temperature is None:
            raise UsageError(
                f"Without a temperature, all {self.answers} answers to a prompt would be the same.",
                hint="Give one: --temperature 0.8",
            )
        if taken := _GIVEN_TO_TEMPLATES.intersection(self.template_arguments):
            raise UsageError(f"The chat template gets {min(taken)} already.", hint="Leave it out.")
        if self.repetition_penalty is not None and not self.repetition_penalty > 0:
            raise UsageError(f"The repetition penalty must be more than 0 (got {self.repetition_penalty}).")
        if self.beams > 1 and (self.temperature is not None or self.schema is not None):
            raise UsageError("Beams go with neither a temperature nor a schema.", hint="Leave one of them out.")
        if not all(self.stops):
            raise UsageError("A stop string is empty.")
        if self.schema is not None:
            try:
                known = isinstance(json.loads(self.schema), dict | bool)
            except ValueError as error:
                raise UsageError(f"The schema is not JSON: {error}.") from error
            if not known:
                raise UsageError("A JSON schema is an object.")
