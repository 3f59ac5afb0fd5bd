"""Summaries made of a text's own sentences: collects their vectors in any order, and chooses once a text is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.models.ragged import Ids
from shardmill.tasks.base import Output
from shardmill.verbs.summarize.base import NO_SENTENCE
from shardmill.verbs.summarize.choice import Numbers, Vectors, choose_sentences, score_sentences
from shardmill.verbs.summarize.params import SummarizeParams

# The sentences of a long text compete in windows of this many; only the chosen ones of a window are held.
WINDOW_SENTENCES = 512

SUMMARY = pa.schema(
    [
        pa.field("summary", pa.string()),
        pa.field("starts", pa.list_(pa.int64())),
        pa.field("stops", pa.list_(pa.int64())),
        pa.field("finish_reason", pa.string()),
    ]
)
# What goes from the device to `Extracts`: one row per sentence; a reference comes with a text's first sentence.
SENTENCE = (
    pa.field("number", pa.int64()),
    pa.field("sentences", pa.int64()),
    pa.field("start", pa.int64()),
    pa.field("sentence", pa.string()),
    pa.field("reference", pa.string()),
    pa.field("reason", pa.string()),
)


class Sentence(NamedTuple):
    """A sentence for the model: its tokens, its number among a text's sentences, where it starts, its characters."""

    ids: Ids
    number: int
    sentences: int
    start: int
    text: str
    reference: str | None


class Candidate(NamedTuple):
    """A sentence that may be chosen."""

    number: int
    start: int
    text: str


@dataclass(slots=True)
class _Window:
    """Sentences that compete with each other; `expected` of them arrive."""

    expected: int
    candidates: list[Candidate] = field(default_factory=list)
    vectors: list[Vectors] = field(default_factory=list)


@dataclass(slots=True)
class _Text:
    centre: NDArray[np.float64]
    sentences: int = 0
    seen: int = 0
    reference: str | None = None
    reason: str | None = None
    windows: dict[int, _Window] = field(default_factory=dict)


Score = Callable[[Sequence[str | None], Sequence[str | None]], pa.RecordBatch]
# Why a summary ends: some of the sentences were chosen, or the text has no more.
_REASONS = {False: "chosen", True: "whole"}


class Extracts:
    """Chooses the sentences of each text. What is held of a long text are its open windows and their best sentences."""

    def __init__(self, items: int, dims: int, params: SummarizeParams, schema: pa.Schema, score: Score | None) -> None:
        self._texts = [_Text(np.zeros(dims)) for _ in range(items)]
        self._count, self._lead = params.sentences, params.lead
        self._schema, self._score = schema, score

    def add(self, items: NDArray[np.int64], rows: pa.RecordBatch) -> None:
        vectors = rows.column("embedding").flatten().to_numpy().reshape(len(items), -1)
        columns = [rows.column(f.name).to_pylist() for f in SENTENCE]
        for item, vector, number, sentences, start, text, reference, reason in zip(
            items.tolist(), vectors, *columns, strict=True
        ):
            self._add(self._texts[item], Candidate(number, start, text), vector, sentences, reference, reason)

    def _add(
        self, text: _Text, one: Candidate, vector: Vectors, sentences: int, reference: str | None, reason: str | None
    ) -> None:
        text.sentences, text.seen = sentences, text.seen + 1
        text.reference = reference if one.number == 0 else text.reference
        text.reason = reason or text.reason
        text.centre += vector
        which = one.number // WINDOW_SENTENCES
        size = min(WINDOW_SENTENCES, sentences - which * WINDOW_SENTENCES)
        window = text.windows.setdefault(which, _Window(size))
        window.expected -= 1
        if reason is None:
            window.candidates.append(one)
            window.vectors.append(vector.copy())
        if not window.expected and sentences > WINDOW_SENTENCES and window.candidates:
            self._narrow(window)

    def _narrow(self, window: _Window) -> None:
        """Keep the sentences of a whole window that its own summary would have."""
        found, vectors = _in_order([window])
        picked = self._choose(found, vectors, vectors.sum(axis=0))
        window.candidates, window.vectors = [found[i] for i in picked], [vectors[i] for i in picked]

    def _choose(self, found: Sequence[Candidate], vectors: Vectors, centre: Vectors) -> list[int]:
        numbers: Numbers = np.array([one.number for one in found], np.int64)
        scores = score_sentences(vectors, numbers, centre, lead=self._lead)
        return sorted(choose_sentences(vectors, scores, self._count))

    def finish(self) -> Output:
        """A text of which nothing arrived has a null row: it is bad already, or its row is in the sink."""
        chosen: list[list[Candidate] | None] = []
        bad = {}
        for item, text in enumerate(self._texts):
            found, vectors = _in_order(list(text.windows.values()))
            centre = text.centre.astype(np.float32)
            chosen.append([found[i] for i in self._choose(found, vectors, centre)] if found else None)
            if text.seen and not found:
                bad[item] = text.reason or NO_SENTENCE
        summaries = [None if each is None else " ".join(one.text for one in each) for each in chosen]
        wholes = [len(each or ()) == text.sentences for each, text in zip(chosen, self._texts, strict=True)]
        columns = [
            pa.array(summaries, pa.string()),
            pa.array([_maybe(each, lambda one: one.start) for each in chosen], pa.list_(pa.int64())),
            pa.array([_maybe(each, lambda one: one.start + len(one.text)) for each in chosen], pa.list_(pa.int64())),
            pa.array([each and _REASONS[whole] for each, whole in zip(chosen, wholes, strict=True)], pa.string()),
        ]
        if self._score is not None:
            columns += self._score(summaries, [text.reference for text in self._texts]).columns
        return Output(pa.RecordBatch.from_arrays(columns, schema=self._schema), bad)


def _maybe(chosen: Sequence[Candidate] | None, number: Callable[[Candidate], int]) -> list[int] | None:
    return None if chosen is None else [number(one) for one in chosen]


def _in_order(windows: Sequence[_Window]) -> tuple[list[Candidate], Vectors]:
    """The candidates of windows in the order of the text, which does not depend on the order of their arrival."""
    pairs = [pair for each in windows for pair in zip(each.candidates, each.vectors, strict=True)]
    pairs.sort(key=lambda pair: pair[0].number)
    if not pairs:
        return [], np.zeros((0, 1), np.float32)
    return [one for one, _ in pairs], np.stack([vector for _, vector in pairs])
