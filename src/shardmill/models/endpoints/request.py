"""What is sent to a server, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardmill.core.errors import UsageError
from shardmill.models.answer_schema import shorten

# What a message of a server may add to the record of a row.
MOST_WORDS = 400
_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")


class BrokenAnswer(Exception):
    """The server's answer cannot be read; a retry helps."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One prompt: a text for `/completions`, or messages for `/chat/completions`."""

    prompt: str | Sequence[Mapping[str, Any]]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    schema: Mapping[str, Any] | None = None
    log_probabilities: bool = False
    template_arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"An answer of {self.max_tokens} tokens was requested.", hint="Request one or more.")

    @property
    def path(self) -> str:
        return "/completions" if isinstance(self.prompt, str) else "/chat/completions"

    def body(self, model: str, token_limit: str = _TOKEN_LIMITS[0]) -> bytes:
        """The JSON to send; the largest number of tokens is always part of it."""
        asked: dict[str, Any] = {"model": model, token_limit: self.max_tokens, "temperature": self.temperature}
        asked["prompt" if isinstance(self.prompt, str) else "messages"] = self.prompt
        if self.top_p != 1.0:
            asked["top_p"] = self.top_p
        if self.repetition_penalty is not None:
            asked["repetition_penalty"] = self.repetition_penalty
        if self.seed is not None:
            asked["seed"] = self.seed
        if self.stop:
            asked["stop"] = list(self.stop)
        if self.log_probabilities:
            asked["logprobs"] = 0 if isinstance(self.prompt, str) else True
        if self.template_arguments:
            asked["chat_template_kwargs"] = dict(self.template_arguments)
        if self.schema is not None:
            wanted = {"name": "answer", "schema": self.schema, "strict": is_strict(self.schema)}
            asked["response_format"] = {"type": "json_schema", "json_schema": wanted}
        return json.dumps(asked, ensure_ascii=False).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """A text, why it ends (stop, length), the tokens that the server counted, and their log-probabilities if asked."""

    text: str
    finish_reason: str
    tokens_in: int = 0
    tokens_out: int = 0
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptRefusal:
    """Why a prompt has no answer, in the server's words where it has some, and the tokens it cost."""

    reason: str
    tokens_in: int = 0
    tokens_out: int = 0


def read_answer(body: bytes) -> PromptAnswer | PromptRefusal:
    """The answer in the body of a response."""
    try:
        said = json.loads(body)
        choice, usage = said["choices"][0], said.get("usage") or {}
        message = choice["message"] if "message" in choice else {"content": choice["text"]}
        text, refusal = message.get("content") or "", message.get("refusal")
        tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        finish = str(choice.get("finish_reason") or "stop")
        told = choice.get("logprobs") or {}
        scores = tuple(told.get("token_logprobs") or (float(each["logprob"]) for each in told.get("content") or ()))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BrokenAnswer(f"its answer is not a completion: {shorten(_text(body), 120)}") from error
    if not isinstance(text, str):
        raise BrokenAnswer(f"its answer holds no text: {shorten(repr(text), 120)}")
    if finish == "content_filter":
        return PromptRefusal("the server's content filter stopped the answer", *tokens)
    if refusal:
        return PromptRefusal(f"the model refused: {shorten(str(refusal), MOST_WORDS)}", *tokens)
    return PromptAnswer(text, finish, *tokens, scores)


def read_error(body: bytes) -> tuple[str, str]:
    """The server's own words for an error, shortened, and its code."""
    text = _text(body)
    try:
        said = json.loads(text)
    except ValueError:
        return shorten(text, MOST_WORDS), ""
    error = said.get("error", said) if isinstance(said, dict) else said
    if isinstance(error, dict):
        words = error.get("message") or error.get("detail") or error
        return shorten(words if isinstance(words, str) else json.dumps(words), MOST_WORDS), str(error.get("code") or "")
    return shorten(str(error), MOST_WORDS), ""


def other_token_limit(words: str, now: str) -> str | None:
    """The name for the largest number of tokens that the server asks for instead of the present one."""
    other = _TOKEN_LIMITS[1 - _TOKEN_LIMITS.index(now)]
    lower = words.lower()
    return other if other in lower and ("unsupported" in lower or "not supported" in lower) else None


def is_strict(schema: Any) -> bool:
    """Whether a schema may be enforced strictly: its objects name all their properties, and require each."""
    if isinstance(schema, list):
        return all(is_strict(part) for part in schema)
    if not isinstance(schema, Mapping):
        return True
    if "properties" in schema or schema.get("type") == "object":
        names = set(schema.get("properties", {}))
        if schema.get("additionalProperties") is not False or names != set(schema.get("required", ())):
            return False
    return all(is_strict(part) for part in schema.values())


def _text(body: bytes) -> str:
    return body[: 16 * MOST_WORDS].decode("utf-8", "replace")
