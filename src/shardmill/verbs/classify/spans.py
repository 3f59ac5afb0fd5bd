"""Spans of a text from the labels of its tokens, as transformers' pipeline joins them with the strategy `simple`.

Neighbours with the same label are one span, and one that begins with B- is a new one. Its score is the mean of its
tokens'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.models.networks.stored import Reals
from shardmill.verbs.classify.rows import LABEL, SCORE, SPANS

OUTSIDE = "O"
_SPAN = pa.struct(
    [
        pa.field("text", pa.string()),
        pa.field(LABEL, pa.string()),
        pa.field("start", pa.int32()),
        pa.field("end", pa.int32()),
        pa.field(SCORE, pa.float32()),
    ]
)


class SpelledText(NamedTuple):
    """A text, the model's input ids, and the characters of the tokens that are its own: those after `first` ids."""

    text: str
    ids: NDArray[np.int32]
    first: int
    starts: NDArray[np.int32]
    stops: NDArray[np.int32]


class SpanRows:
    """A list of spans per text; tokens with the label O are in none."""

    schema = pa.schema([pa.field(SPANS, pa.list_(_SPAN))])

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._tags = [_split(name) for name in names]
        self._last: list[tuple[SpelledText, Reals, list[dict[str, Any]]]] = []

    def make(self, texts: Sequence[SpelledText], probabilities: Sequence[Reals], bad: Sequence[int]) -> pa.RecordBatch:
        """One row per text, null where it is bad; `probabilities` are those of its own tokens."""
        made = [
            None if i in bad else self._join(*both) for i, both in enumerate(zip(texts, probabilities, strict=True))
        ]
        both = zip(texts, probabilities, made, strict=True)
        self._last = [(text, own, spans) for text, own, spans in both if spans is not None]
        return pa.record_batch([pa.array(made, self.schema.field(SPANS).type)], schema=self.schema)

    def _join(self, text: SpelledText, probabilities: Reals) -> list[dict[str, Any]]:
        best = probabilities.argmax(axis=1)
        groups: list[list[int]] = []
        for i, label in enumerate(best):
            begins, name = self._tags[label]
            if groups and not begins and name == self._tags[best[groups[-1][-1]]][1]:
                groups[-1].append(i)
            else:
                groups.append([i])
        return [
            self._span(text, self._tags[best[group[0]]][1], group, probabilities[group, best[group]])
            for group in groups
            if self._names[best[group[0]]] != OUTSIDE
        ]

    def _span(self, text: SpelledText, label: str, group: list[int], scores: Reals) -> dict[str, Any]:
        start, end = int(text.starts[group[0]]), int(text.stops[group[-1]])
        return {"text": text.text[start:end], LABEL: label, "start": start, "end": end, SCORE: scores.mean()}

    def distance(self, column: str, stored: Any, again: Any) -> float:
        """How far apart two lists are: by the scores of the same spans, else by the labels of the tokens."""
        before, now = stored.as_py(), again.as_py()
        if before is None or now is None:
            return float(before is not now)
        if [_place(span) for span in before] == [_place(span) for span in now]:
            return max((abs(a[SCORE] - b[SCORE]) for a, b in zip(before, now, strict=True)), default=0.0)
        found = [each for each in self._last if [_place(a) for a in each[2]] == [_place(b) for b in now]]
        return max((self._disagreement(text, own, before) for text, own, _ in found), default=1.0)

    def _disagreement(self, text: SpelledText, probabilities: Reals, spans: Sequence[dict[str, Any]]) -> float:
        """By how much a label that these spans give a token is less likely than the likeliest, of any token."""
        if any(span["text"] != text.text[span["start"] : span["end"]] for span in spans):
            return 1.0
        worst, edges = 0.0, {(span["start"], "start") for span in spans} | {(span["end"], "end") for span in spans}
        earlier: dict[str, Any] | None = None
        for i, (start, stop) in enumerate(zip(text.starts.tolist(), text.stops.tolist(), strict=True)):
            inside = next((span for span in spans if span["start"] <= start and stop <= span["end"]), None)
            edges -= {(start, "start"), (stop, "end")}
            begins = inside is not None and inside is not earlier
            after_same = begins and earlier is not None and inside is not None and earlier[LABEL] == inside[LABEL]
            worst = max(worst, self._unlikeliness(probabilities[i], inside, begins=begins, must_begin=after_same))
            earlier = inside
        return 1.0 if edges else worst

    def _unlikeliness(self, row: Reals, span: dict[str, Any] | None, *, begins: bool, must_begin: bool) -> float:
        allowed = [
            float(p)
            for p, (is_first, name), full in zip(row, self._tags, self._names, strict=True)
            if (
                full == OUTSIDE
                if span is None
                else name == span[LABEL] and (begins or not is_first) and (is_first or not must_begin)
            )
        ]
        return float(row.max()) - max(allowed, default=0.0)


def _split(name: str) -> tuple[bool, str]:
    """Whether a label begins a span, and what it is without B- or I-."""
    return name.startswith("B-"), name[2:] if name.startswith(("B-", "I-")) else name


def _place(span: dict[str, Any]) -> tuple[Any, ...]:
    return span[LABEL], span["start"], span["end"], span["text"]
