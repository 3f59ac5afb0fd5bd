"""Embed texts as sparse vectors: the words of a model's vocabulary that stand for a text, and their weights.

task = EmbedSparseTask(model="./splade")
task.open(Device("cpu", "cpu", threads=4))
rows = task.run(task.prepare(["a text"]).inputs).rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.models.embedder import NOT_FINITE
from shardmill.models.folder import ModelFolder
from shardmill.models.sparse.embedder import SparseEmbedder
from shardmill.models.sparse.rows import SparseRows
from shardmill.tasks.base import Output, Prepared, Task
from shardmill.tasks.encoding import EncoderTask
from shardmill.tasks.params import read_params
from shardmill.verbs.embed_sparse.params import EmbedSparseParams
from shardmill.verbs.embed_sparse.rows import SPARSE, distance, make_column, output_schema

# How far a weight may be from that in float32, as a share of the row's largest one, or of 1 if that is more.
_MOST_DISTANT = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}


class EmbedSparseTask(EncoderTask):
    """The `embed-sparse` task. Its column `sparse` has a list of words, by number, with their weights."""

    encoder: SparseEmbedder
    serves_runs = True

    def __init__(self, **params: Any) -> None:
        self.params = read_params(EmbedSparseParams, params, "embed-sparse")
        own = self.params
        self.encoder = SparseEmbedder(own.model, prompt=own.prompt, max_tokens=own.max_tokens)
        self._keeps_all = False

    @property
    def folder(self) -> ModelFolder:
        """The model's folder."""
        return self.encoder.folder

    @property
    def dims(self) -> int:
        """The number of words of the vocabulary."""
        return self.encoder.dims

    @property
    def most(self) -> int | None:
        """How many words a row has at most."""
        return self.params.max_active_dims or self.encoder.pooling.most

    @property
    def output(self) -> pa.Schema:
        return output_schema(self.dims)

    @property
    def model_code(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.encoder.model_code

    @property
    def plan_notes(self) -> list[str]:  # type: ignore[override]
        return self.encoder.plan_notes

    def for_reference(self) -> Task:
        """The same with all words of a text: which are the heaviest may depend on rounding."""
        if self.most is None:
            return self
        other = EmbedSparseTask(**self.params.model_dump(exclude_defaults=True))
        other._keeps_all = True
        return other

    def distance(self, column: str, stored: Any, again: Any) -> float | None:
        return distance(stored, again, self.most) if column == SPARSE else None

    def most_distant(self, precision: str) -> float | None:
        return _MOST_DISTANT.get(precision, max(_MOST_DISTANT.values()))

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Tokenize; None has no tokens and costs nothing."""
        tokens = self.encoder.encode(texts)
        costs = tokens.rows.lengths
        return Prepared(tokens.rows, costs, tokens.bad, int(costs.sum()), tokens.truncated)

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Start a batch and return a function that waits for its rows; the device works in the background."""
        fetch = self.encoder.begin_sparse(inputs)
        return lambda: self._make(fetch())

    def sparse_query(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The words of a search query and their weights; only the model's own query prompt is put before `text`."""
        return self.encoder.sparse_query(text)

    def _make(self, made: SparseRows) -> Output:
        bad = dict.fromkeys(made.not_finite(), NOT_FINITE)
        kept = made if self._keeps_all or self.most is None else made.heaviest(self.most)
        null = np.zeros(len(kept), bool)
        null[list(bad)] = True
        return Output(pa.record_batch([make_column(kept, null)], schema=self.output), bad)
