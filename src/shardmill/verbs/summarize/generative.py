"""Summaries that a model writes. A long text is cut into windows, and the summaries of its windows are summarized."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError
from shardmill.models.decoding.options import GenerationOptions
from shardmill.models.replies import EncodedPrompts, LocalModel, Replies, open_replies
from shardmill.models.reply import Reply
from shardmill.tasks.base import Agreement, Output, Prepared, SourceSample, StreamingTask
from shardmill.verbs.summarize.base import NO_SENTENCE, SummarizeTask
from shardmill.verbs.summarize.windows import CHARACTERS_PER_TOKEN, cut_windows

WRITTEN = pa.schema(
    [
        pa.field("summary", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("windows", pa.int32()),
        pa.field("tokens_in", pa.int32()),
        pa.field("tokens_out", pa.int32()),
    ]
)
_REQUEST = "Summarize the text below in at most {} sentences. Answer with the summary alone."
# T5 was trained with these words before a text to summarize.
_T5_PREFIX = "summarize: "
_NO_PROGRESS = "the summaries of its {:,} windows are together as long as the windows: ask for fewer tokens"


@dataclass(frozen=True, slots=True)
class Windowed:
    """A text for the model: a prompt for each of its windows, and the reference that its summary is compared with."""

    prompts: Sequence[Any]
    reference: str | None


@dataclass(slots=True)
class _Text:
    """A text under way: the replies to its windows so far, and what was spent on it."""

    own: Windowed
    windows: int
    replies: list[Reply | None]
    tokens_in: int = 0
    tokens_out: int = 0


@dataclass(slots=True)
class _UnderWay:
    texts: dict[int, _Text] = field(default_factory=dict)
    # The text and the window of each prompt that waits for the model.
    waiting: deque[tuple[tuple[int, int], Any]] = field(default_factory=deque)

    def put(self, number: int, prompts: Sequence[Any]) -> None:
        self.texts[number].replies = [None] * len(prompts)
        self.waiting.extend(((number, window), prompt) for window, prompt in enumerate(prompts))


class GenerativeSummaries(SummarizeTask, StreamingTask):
    """In the column `summary`, what the model wrote; `windows` is the number of pieces that the text was read in."""

    def __init__(self, **params: Any) -> None:
        super().__init__(WRITTEN, params)
        if not self.params.model:
            raise SpecError(
                "No model was given to write summaries.", hint="Pass the folder of one: --model ./bart-large-cnn"
            )

    @cached_property
    def _replies(self) -> Replies:
        own = self.params
        options = GenerationOptions(
            own.max_tokens,
            beams=own.beams,
            temperature=own.temperature,
            seed=own.seed,
            source_language=own.source_language,
            target_language=own.target_language,
        )
        return open_replies(own.model, options, endpoint=own.endpoint, key_variable=own.key_variable)

    @cached_property
    def _before(self) -> str:
        """What is put before a text: the request, or what a model for summaries was trained with."""
        if self.params.prompt is not None:
            return self.params.prompt
        if not isinstance(self._replies, LocalModel) or not self._replies.folder.crossed:
            return _REQUEST.format(self.params.sentences) + "\n\n"
        config = self._replies.folder.config
        own = ((config.get("task_specific_params") or {}).get("summarization") or {}).get("prefix")
        return str(own or (_T5_PREFIX if config.get("model_type") == "t5" else ""))

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

    def fingerprint(self) -> dict[str, str]:
        self.check_rouge()
        return self._replies.fingerprint()

    def follow_model(self) -> dict[str, Any]:
        return self._replies.follow_model()

    def check_installed(self, kind: str) -> None:
        self._replies.check_installed()

    def open(self, device: Device) -> None:
        self._replies.open(device)

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Tokenize all texts at once, then the windows of those that are too long."""
        references = self.references(fields, len(texts))
        bad = {i: NO_SENTENCE for i, text in enumerate(texts) if text is not None and not any(map(str.isalnum, text))}
        whole = self._ask([None if i in bad else text for i, text in enumerate(texts)])
        inputs: list[Windowed | None] = []
        costs, tokens = np.zeros(len(texts), np.int64), 0
        for i, (text, prompt) in enumerate(zip(texts, whole.prompts, strict=True)):
            if text is None or i in bad:
                inputs.append(None)
                continue
            encoded = EncodedPrompts([prompt], [whole.costs[i]], {0: whole.bad[i]} if i in whole.bad else {})
            if not self._fits(text, encoded):
                encoded = self._cut(text)
            if encoded.bad:
                bad[i] = next(iter(encoded.bad.values()))
            costs[i] = sum(encoded.costs)
            tokens += self._count(encoded.prompts)
            inputs.append(Windowed(encoded.prompts, references[i]))
        return Prepared(inputs, costs, bad, tokens=tokens)

    def _encode(self, text: str) -> EncodedPrompts:
        """Prompts of the windows of a text: one, if it fits as a whole."""
        whole = self._ask([text])
        return whole if self._fits(text, whole) else self._cut(text)

    def _cut(self, text: str) -> EncodedPrompts:
        return self._ask(cut_windows(text, self._room, lambda window: self._fits(window, self._ask([window]))))

    def _ask(self, windows: Sequence[str | None]) -> EncodedPrompts:
        return self._replies.encode([None if window is None else self._before + window for window in windows])

    def _count(self, prompts: Sequence[Any]) -> int:
        """The tokens of prompts, where they are known before a reply."""
        return sum(len(each.ids) for each in prompts if each is not None) if self._replies.counts_tokens else 0

    @property
    def _room(self) -> int:
        """About how many tokens of a text a window has."""
        limits = [self.params.window_tokens or 1 << 20]
        if isinstance(self._replies, LocalModel):
            limits.append(self._replies.generator.limit - len(self._before) // CHARACTERS_PER_TOKEN)
        return max(1, min(limits))

    def _fits(self, text: str, encoded: EncodedPrompts) -> bool:
        if encoded.bad or self.params.window_tokens is None:
            return not encoded.bad
        if self._replies.counts_tokens:
            return self._count(encoded.prompts) <= self.params.window_tokens
        return len(text) <= self.params.window_tokens * CHARACTERS_PER_TOKEN

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        """Windows go to the model as they come, and the summaries of a text's windows once they are all there."""
        open_ = _UnderWay()
        for group in self._replies.stream(self._feed(inputs, open_)):
            done: list[tuple[int, _Text, Reply]] = []
            for (number, window), reply in group:
                if (text := open_.texts.get(number)) is not None:
                    final = self._take(open_, number, text, window, reply)
                    done += [(number, text, final)] if final is not None else []
            for number, _, _ in done:
                del open_.texts[number]
            if done:
                yield [number for number, _, _ in done], self._rows(done)

    def _feed(
        self, inputs: Iterator[tuple[int, Any] | None], open_: _UnderWay
    ) -> Iterator[tuple[tuple[int, int], Any] | None]:
        """Prompts that wait, then those of the next text; it ends only when no text is under way."""
        more = True
        while more or open_.texts or open_.waiting:
            if not open_.waiting and more:
                try:
                    given = next(inputs)
                except StopIteration:
                    more = False
                    continue
                if given is not None:
                    number, own = given
                    open_.texts[number] = _Text(own, len(own.prompts), [])
                    open_.put(number, own.prompts)
            if not open_.waiting:
                yield None
                continue
            yield open_.waiting.popleft()

    def _take(self, open_: _UnderWay, number: int, text: _Text, window: int, reply: Reply) -> Reply | None:
        """Keep a reply; returns the last one of a text, or one that ends it."""
        text.replies[window] = reply
        text.tokens_in += reply.tokens_in
        text.tokens_out += reply.tokens_out
        if reply.fault:
            open_.waiting = deque(each for each in open_.waiting if each[0][0] != number)
            return reply
        if None in text.replies:
            return None
        if len(text.replies) == 1:
            return reply
        joined = "\n".join(each.text.strip() for each in text.replies if each is not None)
        encoded = self._encode(joined)
        if encoded.bad or len(encoded.prompts) >= len(text.replies):
            fault = next(iter(encoded.bad.values()), _NO_PROGRESS.format(len(text.replies)))
            return Reply("", "", 0, 0, fault=fault)
        open_.put(number, encoded.prompts)
        return None

    def _rows(self, done: Sequence[tuple[int, _Text, Reply]]) -> Output:
        summaries = [reply.text.strip() for _, _, reply in done]
        tokens_in, tokens_out = [text.tokens_in for _, text, _ in done], [text.tokens_out for _, text, _ in done]
        columns = [
            pa.array(summaries, pa.string()),
            pa.array([reply.finish_reason for _, _, reply in done], pa.string()),
            pa.array([text.windows for _, text, _ in done], pa.int32()),
            pa.array(tokens_in, pa.int32()),
            pa.array(tokens_out, pa.int32()),
        ]
        if self.rouge is not None:
            columns += self.rouge(summaries, [text.own.reference for _, text, _ in done]).columns
        bad = {place: reply.fault for place, (_, _, reply) in enumerate(done) if reply.fault}
        rows = pa.RecordBatch.from_arrays(columns, schema=self.output)
        # Where tokens are counted as prompts are prepared, only those of later rounds are new.
        first = [self._count(text.own.prompts) for _, text, _ in done]
        return Output(rows, bad, tokens_out, [spent - before for spent, before in zip(tokens_in, first, strict=True)])

    def agreement(self, precision: str) -> Agreement:
        """As for any generation: equal in float32, but for words of equal rank."""
        return "mostly" if precision == "float32" and not self.params.endpoint else "none"

    def check_rows(self, rows: pa.RecordBatch) -> str | None:
        reasons = set(rows.column("finish_reason").drop_null().to_pylist()) - {"stop", "length"}
        if reasons and not self.params.endpoint:
            return f"an unknown finish_reason, {min(reasons)!r}"
        return None

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        return self._replies.notes

    @property
    def numerics(self) -> Mapping[str, str]:  # type: ignore[override]
        return self._replies.numerics

    def gpu_bytes(self, precise: bool) -> int | None:
        return self._replies.gpu_bytes(precise)

    def bytes_per_s(self, kind: str) -> float:
        return self._replies.bytes_per_s(kind, self.params.max_tokens)
