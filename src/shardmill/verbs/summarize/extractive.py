"""Summaries of a text's own sentences, by the embeddings of a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import SpecError
from shardmill.core.sentences import split_sentences
from shardmill.models.embedder import NOT_FINITE, TextEmbedder, not_finite
from shardmill.models.kinds import check_embeds
from shardmill.models.names import MINILM
from shardmill.tasks.base import Agreement, Combined, Output, Prepared
from shardmill.tasks.encoding import EncoderTask
from shardmill.verbs.summarize.base import NO_SENTENCE, SummarizeTask
from shardmill.verbs.summarize.extract import SENTENCE, SUMMARY, Extracts, Sentence

# Changes when a version of shardmill splits or chooses sentences in another way.
_RULES = "1"
_OF_WRITERS = {
    *("prompt", "window_tokens", "max_tokens", "endpoint", "key_variable", "temperature", "seed", "beams"),
    *("source_language", "target_language"),
}


class ExtractiveSummaries(SummarizeTask, EncoderTask):
    """In the column `summary`, the sentences of each text that stand for all of it; `starts` and `stops` say where."""

    encoder: TextEmbedder

    def __init__(self, **params: Any) -> None:
        super().__init__(SUMMARY, params)
        if others := sorted(self.params.model_fields_set & _OF_WRITERS):
            raise SpecError(
                f"{others[0]} is for a model that writes, and this one chooses sentences of the text.",
                hint="Give --method generative and the --model that writes, or leave it out.",
            )
        self.encoder = TextEmbedder(self.params.model or MINILM)

    def fingerprint(self) -> dict[str, str]:
        self.check_rouge()
        check_embeds(self.encoder.location.path)
        return {**self.encoder.fingerprint(), "rules": _RULES}

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Split the texts into sentences, and tokenize these."""
        references = self.references(fields, len(texts))
        spans = [[] if text is None else split_sentences(text) for text in texts]
        bad = {i: NO_SENTENCE for i, text in enumerate(texts) if text is not None and not spans[i]}
        owners = np.repeat(np.arange(len(texts)), [len(each) for each in spans])
        found = [(texts[i] or "")[start:stop] for i, each in enumerate(spans) for start, stop in each]
        tokens = self.encoder.encode(found)
        costs = tokens.rows.lengths
        numbered = [(i, n, start) for i, each in enumerate(spans) for n, (start, _) in enumerate(each)]
        inputs = [
            Sentence(tokens.rows[k], n, len(spans[i]), start, found[k], references[i] if n == 0 else None)
            for k, (i, n, start) in enumerate(numbered)
        ]
        return Prepared(inputs, costs, bad, int(costs.sum()), tokens.truncated, owners)

    def begin(self, inputs: Sequence[Sentence]) -> Callable[[], Output]:
        # A sentence without tokens has no vector; its text may have others.
        spoken = [i for i, one in enumerate(inputs) if len(one.ids)]
        fetch = self.encoder.begin([inputs[i].ids for i in spoken])
        return lambda: self._rows(inputs, spoken, fetch())

    def _rows(self, inputs: Sequence[Sentence], spoken: Sequence[int], made: NDArray[np.float32]) -> Output:
        vectors = np.zeros((len(inputs), self.encoder.dims), np.float32)
        reasons: list[str | None] = ["the model has no tokens for this text"] * len(inputs)
        faults = dict.fromkeys(not_finite(made), NOT_FINITE)
        made[list(faults)] = 0
        vectors[list(spoken)] = made
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        for place, i in enumerate(spoken):
            reasons[i] = faults.get(place)
        values = (
            [one.number for one in inputs],
            [one.sentences for one in inputs],
            [one.start for one in inputs],
            [one.text for one in inputs],
            [one.reference for one in inputs],
            reasons,
        )
        columns = [pa.array(value, f.type) for value, f in zip(values, SENTENCE, strict=True)]
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.encoder.dims)
        schema = pa.schema([*SENTENCE, pa.field("embedding", column.type)])
        return Output(pa.RecordBatch.from_arrays([*columns, column], schema=schema))

    def combine(self, items: int) -> Combined:
        return Extracts(items, self.encoder.dims, self.params, self.output, self.rouge)

    def agreement(self, precision: str) -> Agreement:
        """In float32 the same sentences are chosen again; in half precision nearly equal ones may change places."""
        return "exact" if precision == "float32" else "mostly"

    def check_rows(self, rows: pa.RecordBatch) -> str | None:
        """Every summary has from one to `sentences` sentences, and its characters are theirs."""
        for row in rows.select(SUMMARY.names).to_pylist():
            if row["summary"] is None:
                continue
            spans = list(zip(row["starts"], row["stops"], strict=False))
            if not 1 <= len(spans) <= self.params.sentences or len(row["starts"]) != len(row["stops"]):
                return f"a summary has {len(spans)} sentences, not 1 to {self.params.sentences}"
            if sum(stop - start + 1 for start, stop in spans) - 1 != len(row["summary"]):
                return "a summary is not as long as its sentences"
            if row["finish_reason"] not in ("whole", "chosen"):
                return f"a finish_reason is {row['finish_reason']!r}"
        return None
