"""Embed texts as a vector per token: ColBERT's vectors, which a search compares by MaxSim.

task = EmbedTokensTask(model="./colbert")
task.open(Device("cpu", "cpu", threads=4))
rows = task.run(task.prepare(["a text"]).inputs).rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.token_vectors import TokenColumn
from shardmill.models.colbert.embedder import TokenEmbedder, TokenRows
from shardmill.models.embedder import NOT_FINITE
from shardmill.models.folder import ModelFolder
from shardmill.models.golden import lowest_of_tokens
from shardmill.tasks.base import Output, Prepared
from shardmill.tasks.encoding import EncoderTask
from shardmill.tasks.params import read_params
from shardmill.verbs.embed_tokens.params import EmbedTokensParams
from shardmill.verbs.embed_tokens.rows import VECTORS, distance, make_rows, output_schema

# A trial sees a few hundred tokens, a sample many thousands: the furthest of them may be this many times as far.
_TIMES_AS_FAR = 4


class EmbedTokensTask(EncoderTask):
    """The `embed-tokens` task. Its column `vectors` has a list of vectors, and `tokens` their number."""

    encoder: TokenEmbedder
    serves_runs = True

    def __init__(self, **params: Any) -> None:
        self.params = read_params(EmbedTokensParams, params, "embed-tokens")
        own = self.params
        self.encoder = TokenEmbedder(own.model, prompt=own.prompt, max_tokens=own.max_tokens)

    @property
    def folder(self) -> ModelFolder:
        """The model's folder."""
        return self.encoder.folder

    @property
    def column(self) -> TokenColumn:
        """The column of the vectors."""
        return TokenColumn(VECTORS, self.encoder.dims, self.params.dtype)

    @property
    def output(self) -> pa.Schema:
        return output_schema(self.column)

    @property
    def model_code(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.encoder.model_code

    def distance(self, column: str, stored: Any, again: Any) -> float | None:
        return distance(stored, again, self.column) if column == VECTORS else None

    def most_distant(self, precision: str) -> float | None:
        return _TIMES_AS_FAR * (1.0 - lowest_of_tokens(precision))

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Tokenize; None has no tokens and costs nothing."""
        tokens = self.encoder.encode(texts)
        costs = tokens.rows.lengths
        return Prepared(tokens.rows, costs, tokens.bad, int(costs.sum()), tokens.truncated)

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Start a batch and return a function that waits for its rows; the device works in the background."""
        fetch = self.encoder.begin_tokens(inputs)
        return lambda: self._make(fetch())

    def _make(self, made: TokenRows) -> Output:
        bad = dict.fromkeys(made.not_finite(), NOT_FINITE)
        null = np.zeros(len(made.counts), bool)
        null[list(bad)] = True
        return Output(make_rows(made, self.column, null), bad)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vectors of a search query, one per token, as the model marks and expands queries."""
        return self.encoder.query_vectors(text)
