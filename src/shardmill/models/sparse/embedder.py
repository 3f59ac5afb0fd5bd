"""Texts in, sparse vectors out: what the `embed-sparse` task computes with.

embedder = SparseEmbedder("./splade")
embedder.open(Device("cpu", "cpu", threads=4))
rows = embedder.begin_sparse(embedder.encode(["a text"]).rows)()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.embedder import TextEmbedder
from shardmill.models.folder import ModelFolder
from shardmill.models.networks.stored import read_weights
from shardmill.models.sparse.folder import SpladePooling, read_sparse_folder
from shardmill.models.sparse.rows import SparseRows

# Tokens of a batch at most: many short texts would need much memory for their weights before the zeros are left out.
_MOST_TOKENS = 32_768


class SparseEmbedder(TextEmbedder):
    """A masked language model whose logits are pooled, opened once in each worker."""

    @cached_property
    def folder(self) -> ModelFolder:
        """The model's folder."""
        return read_sparse_folder(self.location.path)

    @property
    def pooling(self) -> SpladePooling:
        """How logits become weights."""
        pooling = self.folder.pooling
        assert isinstance(pooling, SpladePooling)
        return pooling

    def begin_sparse(self, rows: Sequence[NDArray[np.int32]]) -> Callable[[], SparseRows]:
        """Start a batch of tokens and return a function that waits for its rows; the device works in the background."""
        if self._kernel is None:
            raise RuntimeError("call open() before run()")
        if not rows:
            return lambda: SparseRows.of(np.zeros((0, self.dims), np.float32))
        if self._device.kind == "cuda":
            from shardmill.models.encoder import Encoder
            from shardmill.models.sparse.on_gpu import begin_on_gpu

            assert isinstance(self._kernel, Encoder)
            fetch = begin_on_gpu(self._kernel, rows)
            return lambda: self._finish_sparse(rows, fetch())
        dense = self._kernel.begin(rows)
        return lambda: self._finish_sparse(rows, SparseRows.of(dense()))

    def _finish_sparse(self, rows: Sequence[NDArray[np.int32]], made: SparseRows) -> SparseRows:
        """Recompute in float32 what overflowed in half precision."""
        if self._kernel is None or self._kernel.precision == "float32" or not (again := made.not_finite()):
            return made
        self._redone += len(again)
        return made.replaced(again, SparseRows.of(self._exact.encode([rows[i] for i in again])))

    @property
    def batch_budget(self) -> int:
        """The most tokens of a batch."""
        return min(self._batch_budget, _MOST_TOKENS)

    @batch_budget.setter
    def batch_budget(self, tokens: int) -> None:
        self._batch_budget = tokens

    @property
    def plan_notes(self) -> list[str]:
        """What the user should know of the model before a run."""
        name = self.location.name
        if not (self.location.path / "modules.json").exists():
            return [
                f"{name} has no modules.json: the weight of a word is its largest logit, as SPLADE has it. A masked "
                "language model that was not trained for that gives many words to every text."
            ]
        return []

    def sparse_query(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The words of a search query and their weights, with the model's own query prompt and limit."""
        tokens = self.tokenizer.encode([text], self.folder.prompts.get("query", ""))
        if tokens.bad or not len(tokens.rows[0]):
            raise ModelError(f"The text to search for cannot be read: {next(iter(tokens.bad.values()), 'no tokens')}.")
        if self.pooling.query is None:
            made = self.begin_sparse([tokens.rows[0]])()
        else:
            words = np.unique(self.tokenizer.strip(tokens.rows[0]))
            words = words[self._query_weights[words] > 0]
            made = SparseRows(words, self._query_weights[words], np.array([0, len(words)]))
        return (made if self.pooling.most is None else made.heaviest(self.pooling.most)).row(0)

    @cached_property
    def _query_weights(self) -> NDArray[np.float32]:
        """The weight of each word in a query of a model whose queries need no network."""
        assert self.pooling.query is not None
        stored = read_weights(self.pooling.query)
        if "weight" not in stored or stored.shape("weight") != (self.dims,):
            raise ModelError(
                f"{self.pooling.query.name} has no weight for each of the {self.dims:,} words.",
                hint="Save the model again with sentence-transformers, which writes model.safetensors.",
            )
        return stored["weight"]
