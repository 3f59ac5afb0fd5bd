"""Answer a prompt for every item, with a model of this process or one behind an OpenAI-compatible server.

task = GenerateTask(model="Qwen3-0.6B", max_tokens=60)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.core.devices import Device
from shardmill.models.answer_schema import AnswerSchema
from shardmill.models.decoding.options import Asked
from shardmill.models.replies import Replies, most_new_tokens, open_replies
from shardmill.models.reply import Reply
from shardmill.tasks.base import Agreement, Output, Prepared, SourceSample, StreamingTask
from shardmill.tasks.params import read_params
from shardmill.verbs.generate.params import GenerateParams

OUTPUT = pa.schema(
    [
        pa.field("output", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("tokens_in", pa.int32()),
        pa.field("tokens_out", pa.int32()),
    ]
)
_REASONS = {"stop", "length"}
# What rounding may add to the log-probability of a token that is certain.
_MOST_SCORE = 1e-3


LOG_PROBABILITIES = "log_probabilities"


def output_of(*, answers: int, log_probabilities: bool) -> pa.Schema:
    """The columns of a reply, with the log-probabilities of its tokens; lists, where a prompt has several answers."""
    columns = [*OUTPUT, *([pa.field(LOG_PROBABILITIES, pa.list_(pa.float32()))] if log_probabilities else [])]
    if answers == 1:
        return pa.schema(columns)
    return pa.schema([c if c.name == "tokens_in" else c.with_type(pa.list_(c.type)) for c in columns])


class GenerateTask(StreamingTask):
    """The `generate` task: the text of an item is the prompt, and its row has the answer and why it ended."""

    serves_runs = True
    takes_adapters = True

    def __init__(self, **params: Any) -> None:
        self.params = read_params(GenerateParams, params, "generate")
        self.output = output_of(answers=self.params.answers, log_probabilities=self.params.log_probabilities)
        self._schema = AnswerSchema(self.params.response_schema) if self.params.response_schema is not None else None

    @cached_property
    def _replies(self) -> Replies:
        own = self.params
        return open_replies(
            own.model,
            own.options(),
            self._schema,
            endpoint=own.endpoint,
            key_variable=own.key_variable,
            adapter=own.adapter,
        )

    @property
    def settles(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._replies.settles

    def settle(self, source: SourceSample) -> dict[str, Any]:
        return self._replies.settle()

    @property
    def plan_notes(self) -> Sequence[str]:  # type: ignore[override]
        return self._replies.plan_notes

    @property
    def batch_budget(self) -> int:  # type: ignore[override]
        return self._replies.most_cost

    @property
    def model_code(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._replies.model_code

    def fingerprint(self) -> dict[str, str]:
        return self._replies.fingerprint()

    def follow_model(self) -> dict[str, Any]:
        return self._replies.follow_model()

    def check_installed(self, kind: str) -> None:
        self._replies.check_installed()

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
            replies = [reply for _, reply in group]
            yield numbers, make_output(replies, self.output, counted=self._replies.counts_tokens)

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
        most_tokens = most_new_tokens(self.params.max_tokens, self._schema)
        own = not self.params.endpoint
        return check_replies(rows, most_tokens, self._schema, own=own, answers=self.params.answers)

    def gpu_bytes(self, precise: bool) -> int | None:
        return self._replies.gpu_bytes(precise)

    def bytes_per_s(self, kind: str) -> float:
        return self._replies.bytes_per_s(kind, self.params.max_tokens)


def make_output(replies: Sequence[Reply], schema: pa.Schema, *, counted: bool) -> Output:
    """The rows of some replies; `counted` if the tokens of their prompts were counted before."""
    answers = [(reply, *reply.others) for reply in replies]
    told: dict[str, list[Any]] = {
        "output": [[each.text for each in row] for row in answers],
        "finish_reason": [[each.finish_reason for each in row] for row in answers],
        "tokens_in": [row[0].tokens_in for row in answers],
        "tokens_out": [[each.tokens_out for each in row] for row in answers],
        LOG_PROBABILITIES: [[list(each.scores) for each in row] for row in answers],
    }
    several = pa.types.is_list(schema.field("output").type)
    columns = []
    for field in schema:
        rows = told[field.name]
        columns.append(pa.array(rows if several or field.name == "tokens_in" else [row[0] for row in rows], field.type))
    return Output(
        pa.RecordBatch.from_arrays(columns, schema=schema),
        {i: reply.fault for i, reply in enumerate(replies) if reply.fault},
        tokens_out=[sum(each.tokens_out for each in row) for row in answers],
        tokens_in=() if counted else [sum(each.tokens_in for each in row) for row in answers],
    )


def check_replies(
    rows: pa.RecordBatch, most_tokens: int, schema: AnswerSchema | None, *, own: bool, answers: int = 1
) -> str | None:
    """Whether stored replies have a known reason, a length that is allowed, and fit the schema."""
    counts = pc.list_value_length(rows.column("output")).unique().to_pylist() if answers > 1 else []
    if wrong := {*counts} - {answers, None}:
        return f"{min(wrong)} answers to a prompt, where {answers} were asked for"
    reasons, tokens, texts = (
        pc.list_flatten(rows.column(name)) if answers > 1 else rows.column(name)
        for name in ("finish_reason", "tokens_out", "output")
    )
    if LOG_PROBABILITIES in rows.schema.names:
        scores = rows.column(LOG_PROBABILITIES)
        scores = pc.list_flatten(scores) if answers > 1 else scores
        if own and not pc.list_value_length(scores).equals(tokens):
            return "another number of log-probabilities than of tokens"
        if (pc.max(pc.list_flatten(scores)).as_py() or 0.0) > _MOST_SCORE:
            return "a log-probability above 0"
    reasons = set(reasons.drop_null().to_pylist())
    if own and reasons - _REASONS:
        return f"an unknown finish_reason, {min(reasons - _REASONS)!r}"
    longest = pc.max(tokens).as_py() or 0
    if own and longest > most_tokens:
        return f"an answer of {longest:,} tokens, where {most_tokens:,} were asked for"
    if schema is not None:
        for text in texts.drop_null().to_pylist():
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
