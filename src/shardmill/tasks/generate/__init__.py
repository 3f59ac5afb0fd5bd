"""Answer a prompt for every item, with a model of this process or one behind an OpenAI-compatible server.

task = GenerateTask(model="Qwen3-0.6B", max_tokens=60)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from shardmill.devices import Device
from shardmill.models.decoding.options import Asked, GenerationOptions
from shardmill.permission import KEY_VARIABLE
from shardmill.schema import AnswerSchema
from shardmill.tasks.base import Agreement, Output, Prepared, StreamingTask
from shardmill.tasks.generate.replies import LocalModel, RemoteModel, Replies, Reply
from shardmill.tasks.params import read_params

OUTPUT = pa.schema(
    [
        pa.field("output", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("tokens_in", pa.int32()),
        pa.field("tokens_out", pa.int32()),
    ]
)
_REASONS = {"stop", "length"}


class GenerateParams(BaseModel):
    """The parameters of the task.

    Without a `temperature` the likeliest tokens are taken; with one, `seed` and the prompt decide the draws. `messages`
    says that a text is a conversation, as JSON. `response_schema` is a JSON schema that answers must fit. With an
    `endpoint`, `model` is the name that the server knows, and `key_variable` the environment variable with its key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    endpoint: str = ""
    key_variable: str = KEY_VARIABLE
    system: str = ""
    messages: bool = False
    max_tokens: int = Field(256, ge=1)
    temperature: float | None = Field(None, gt=0, lt=100)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0)
    beams: int = Field(1, ge=1)
    stop: tuple[str, ...] = ()
    response_schema: dict[str, Any] | None = None

    def options(self) -> GenerationOptions:
        """An answer in JSON that was cut off is tried again with twice the tokens, so these are asked for."""
        schema = self.response_schema
        return GenerationOptions(
            max_new_tokens=self.max_tokens * (1 if schema is None else 2),
            system=self.system,
            beams=self.beams,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            stops=self.stop,
            schema=None if schema is None else json.dumps(schema),
        )


class GenerateTask(StreamingTask):
    """The `generate` task: the text of an item is the prompt, and its row has the answer and why it ended."""

    serves_runs = True

    output = OUTPUT

    def __init__(self, **params: Any) -> None:
        self.params = read_params(GenerateParams, params, "generate")
        self._schema = AnswerSchema(self.params.response_schema) if self.params.response_schema is not None else None

    @cached_property
    def _replies(self) -> Replies:
        return open_replies(self.params, self._schema)

    @property
    def batch_budget(self) -> int:  # type: ignore[override]
        return self._replies.most_cost

    @property
    def model_code(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._replies.model_code

    def fingerprint(self) -> dict[str, str]:
        return self._replies.fingerprint()

    def open(self, device: Device) -> None:
        self._replies.open(device)

    def close(self) -> None:
        self._replies.close()

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        asked: list[Asked | None] = list(texts)
        bad: dict[int, str] = {}
        if self.params.messages:
            for i, text in enumerate(texts):
                if text is not None:
                    asked[i], why = read_messages(text)
                    bad |= {i: why} if why else {}
        encoded = self._replies.encode(asked)
        costs = np.array(encoded.costs, np.int64)
        return Prepared(encoded.prompts, costs, {**encoded.bad, **bad}, tokens=encoded.tokens)

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        for group in self._replies.stream(inputs):
            numbers = [number for number, _ in group]
            yield numbers, make_output([reply for _, reply in group], counted=self._replies.counts_tokens)

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        return self._replies.notes

    @property
    def numerics(self) -> dict[str, str]:  # type: ignore[override]
        return self._replies.numerics

    def agreement(self, precision: str) -> Agreement:
        """In float32 an answer comes out again, but for words of equal rank that another CPU rounds differently."""
        return "mostly" if precision == "float32" and not self.params.endpoint else "none"

    def check_rows(self, rows: pa.RecordBatch) -> str | None:
        return check_replies(rows, self.params.options().max_new_tokens, self._schema, own=not self.params.endpoint)

    def gpu_bytes(self, precise: bool) -> int | None:
        return self._replies.gpu_bytes(precise)

    def bytes_per_s(self, kind: str) -> float:
        return self._replies.bytes_per_s(kind, self.params.max_tokens)


def open_replies(params: GenerateParams, schema: AnswerSchema | None = None) -> Replies:
    """The model that replies: a folder, or a server's."""
    if not params.endpoint:
        return LocalModel(params.model, params.options(), schema)
    options = params.options()
    # A server is asked again with another seed, not with more tokens.
    options = replace(options, max_new_tokens=params.max_tokens)
    return RemoteModel(params.model, params.endpoint, params.key_variable, options, schema)


def make_output(replies: Sequence[Reply], *, counted: bool) -> Output:
    """The rows of some replies; `counted` if the tokens of their prompts were counted before."""
    columns = [
        pa.array([reply.text for reply in replies], pa.string()),
        pa.array([reply.finish_reason for reply in replies], pa.string()),
        pa.array([reply.tokens_in for reply in replies], pa.int32()),
        pa.array([reply.tokens_out for reply in replies], pa.int32()),
    ]
    return Output(
        pa.RecordBatch.from_arrays(columns, schema=OUTPUT),
        {i: reply.fault for i, reply in enumerate(replies) if reply.fault},
        tokens_out=[reply.tokens_out for reply in replies],
        tokens_in=() if counted else [reply.tokens_in for reply in replies],
    )


def check_replies(rows: pa.RecordBatch, most_tokens: int, schema: AnswerSchema | None, *, own: bool) -> str | None:
    """Whether stored replies have a known reason, a length that is allowed, and fit the schema."""
    reasons = set(rows.column("finish_reason").drop_null().to_pylist())
    if own and reasons - _REASONS:
        return f"an unknown finish_reason, {min(reasons - _REASONS)!r}"
    longest = pc.max(rows.column("tokens_out")).as_py() or 0
    if own and longest > most_tokens:
        return f"an answer of {longest:,} tokens, where {most_tokens:,} were asked for"
    if schema is not None:
        for text in rows.column("output").drop_null().to_pylist():
            if (why := schema.why_invalid(text)) is not None:
                return f"an answer does not fit the schema: {why}"
    return None


def read_messages(text: str) -> tuple[Asked | None, str]:
    """The conversation in a JSON text, or why there is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None, "the messages are not JSON"
    said = isinstance(found, list) and bool(found)
    if not said or not all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in found):
        return None, "the messages are not a list of objects with role and content"
    return found, ""
