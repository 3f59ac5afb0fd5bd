"""Label texts with a classifier: one label, several, spans of the text, or labels that the model was not trained for.

task = ClassifyTask(model="./language-id")
task.open(Device("cpu", "cpu", threads=4))
rows = task.run(task.prepare(["a text"]).inputs).rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.models.classifier import Classifier
from shardmill.models.embedder import NOT_FINITE, not_finite
from shardmill.models.folder import ModelFolder
from shardmill.models.kinds import TAGGER
from shardmill.models.labels import to_probabilities
from shardmill.models.networks.stored import Reals
from shardmill.tasks.base import Output, Prepared
from shardmill.tasks.encoding import EncoderTask
from shardmill.tasks.params import read_params
from shardmill.verbs.classify.checking import check_options
from shardmill.verbs.classify.params import HYPOTHESIS, ClassifyParams
from shardmill.verbs.classify.rows import LabelRows, NumberRows
from shardmill.verbs.classify.spans import SpanRows, SpelledText
from shardmill.verbs.classify.zero_shot import Hypotheses

# Changes when a version of shardmill makes other rows of the same logits.
_RULES = "1"
# How far a probability may be from that in float32. Those of half precision leave room for deep models.
_MOST_DISTANT = {"float32": 1e-3, "float16": 0.01, "bfloat16": 0.05}
_THRESHOLD = 0.5


class ClassifyTask(EncoderTask):
    """The `classify` task. Its columns are `label` and `score`, with `labels` if several are told; or `spans`; or, of a
    regression, `score` alone.
    """

    encoder: Classifier
    serves_runs = True
    takes_adapters = True

    def __init__(self, **params: Any) -> None:
        self.params = read_params(ClassifyParams, params, "classify")
        own = self.params
        self.encoder = Classifier(
            own.model, max_tokens=own.max_tokens, reads_pairs=bool(own.labels), adapter=own.adapter
        )

    @property
    def folder(self) -> ModelFolder:
        """The model's folder."""
        return self.encoder.folder

    @cached_property
    def _rows(self) -> LabelRows | NumberRows | SpanRows:
        own, labels = self.params, self.encoder.labels
        check_options(own, self.encoder)
        if labels.kind == TAGGER:
            return SpanRows(labels.names)
        if labels.scale == "number":
            return NumberRows()
        several = own.multi_label if own.labels else labels.scale == "sigmoid" and len(labels.names) > 1
        threshold = _THRESHOLD if own.threshold is None else own.threshold
        return LabelRows(
            own.labels or labels.names,
            threshold=threshold if several else None,
            listed=own.all_labels or own.top_k is not None,
            most=own.top_k,
            whole=own.all_labels,
        )

    @cached_property
    def _hypotheses(self) -> Hypotheses | None:
        own = self.params
        if not own.labels:
            return None
        return Hypotheses(self.encoder, own.labels, own.hypothesis or HYPOTHESIS, several=own.multi_label)

    @property
    def output(self) -> pa.Schema:
        return self._rows.schema

    def fingerprint(self) -> dict[str, str]:
        _ = self._rows, self._hypotheses  # Rejects what does not fit the model before a run is planned.
        return {**self.encoder.fingerprint(), "rules": _RULES}

    @property
    def plan_notes(self) -> list[str]:  # type: ignore[override]
        labels = self.encoder.labels
        if labels.scale == "sigmoid" and len(labels.names) == 1:
            return [
                f"{self.encoder.location.name} has one label, {labels.names[0]!r}: each row has it, with its "
                "probability. A re-ranker, which scores pairs of texts, looks the same and belongs in "
                "`shardmill score`."
            ]
        return []

    def bytes_per_s(self, kind: str) -> float:
        """A text is read once for each label that the model was not trained for."""
        return super().bytes_per_s(kind) / max(1, len(self.params.labels))

    def distance(self, column: str, stored: Any, again: Any) -> float | None:
        return self._rows.distance(column, stored, again)

    def most_distant(self, precision: str) -> float | None:
        return _MOST_DISTANT.get(precision, max(_MOST_DISTANT.values()))

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Tokenize; None has no tokens and costs nothing."""
        if isinstance(self._rows, SpanRows):
            return self._spell(texts)
        tokens = self.encoder.tokenizer.encode(texts)
        costs = tokens.rows.lengths
        if (hypotheses := self._hypotheses) is None:
            return Prepared(tokens.rows, costs, tokens.bad, int(costs.sum()), tokens.truncated)
        there = [text is not None and i not in tokens.bad for i, text in enumerate(texts)]
        rows = [hypotheses.bare(row) if has else row[:0] for row, has in zip(tokens.rows, there, strict=True)]
        costs = np.array([hypotheses.cost(len(row)) if has else 0 for row, has in zip(rows, there, strict=True)])
        truncated = sum(hypotheses.cuts(len(row)) for row in rows)
        return Prepared(rows, costs, tokens.bad, int(costs.sum()), truncated)

    def _spell(self, texts: Sequence[str | None]) -> Prepared:
        """Tokenize with the characters of each token."""
        tokenizer = self.encoder.tokenizer
        spelled, bad = tokenizer.spell([text or "" for text in texts])
        lengths = spelled.ids.lengths
        room = None if tokenizer.limit is None else tokenizer.limit - tokenizer.frame_tokens
        kept = lengths if room is None else np.minimum(lengths, room)
        framed = np.array([text is not None and i not in bad for i, text in enumerate(texts)], bool)
        kept = kept * framed
        rows, unfit = tokenizer.frame(spelled.ids.take(spelled.ids.starts[:-1], kept), framed)
        inputs = []
        for text, row, start, count in zip(texts, rows, spelled.ids.starts.tolist(), kept.tolist(), strict=False):
            own = slice(start, start + count)
            inputs.append(SpelledText(text or "", row, tokenizer.ids_before, spelled.starts[own], spelled.stops[own]))
        truncated = int((lengths[framed] > kept[framed]).sum())
        return Prepared(inputs, rows.lengths, bad | unfit, int(rows.lengths.sum()), truncated)

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Start a batch and return a function that waits for its rows; the device works in the background."""
        if isinstance(self._rows, SpanRows):
            return self._begin_spans(inputs, self._rows)
        if self._hypotheses is not None:
            made = self._hypotheses.probabilities(inputs)
            return lambda: self._make(made)
        fetch = self.encoder.begin(inputs)
        return lambda: self._make(to_probabilities(fetch(), self.encoder.labels.scale))

    def _begin_spans(self, inputs: Sequence[SpelledText], rows: SpanRows) -> Callable[[], Output]:
        logits = self.encoder.token_logits([each.ids for each in inputs])
        probabilities = [
            to_probabilities(own, "softmax")[each.first : each.first + len(each.starts)]
            for each, own in zip(inputs, logits, strict=True)
        ]
        bad = {i: NOT_FINITE for i, own in enumerate(probabilities) if not np.isfinite(own).all()}
        return lambda: Output(rows.make(inputs, probabilities, list(bad)), bad)

    def _make(self, probabilities: Reals) -> Output:
        assert not isinstance(self._rows, SpanRows)
        bad = dict.fromkeys(not_finite(probabilities), NOT_FINITE)
        return Output(self._rows.make(probabilities, list(bad)), bad)
