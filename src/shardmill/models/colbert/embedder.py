"""Texts in, token vectors out: what the `embed-tokens` task computes with.

embedder = TokenEmbedder("./colbert")
embedder.open(Device("cpu", "cpu", threads=4))
rows = embedder.begin_tokens(embedder.encode(["a text"]).rows)()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.backend import open_backend
from shardmill.models.colbert.folder import TokenPooling, read_token_folder
from shardmill.models.embedder import TextEmbedder, not_finite
from shardmill.models.folder import ModelFolder
from shardmill.models.networks.stored import Reals
from shardmill.models.plain import PlainEncoder
from shardmill.models.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from shardmill.models.encoder import Encoder

Rows = Sequence[NDArray[np.int32]]


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """All vectors of some texts, and how many each text has."""

    vectors: Reals
    counts: NDArray[np.int64]

    def not_finite(self) -> list[int]:
        """The texts that have NaN or infinity."""
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        return sorted({int(owners[i]) for i in not_finite(self.vectors)})


class TokenEmbedder(TextEmbedder):
    """A model of token vectors, opened once in each worker."""

    @cached_property
    def folder(self) -> ModelFolder:
        """The model's folder."""
        return read_token_folder(self.location.path)

    @property
    def pooling(self) -> TokenPooling:
        """Which tokens have vectors, and what a query is made of."""
        pooling = self.folder.pooling
        assert isinstance(pooling, TokenPooling)
        return pooling

    @property
    def plan_notes(self) -> list[str]:
        """What the user should know of the model before a run."""
        return []

    @property
    def skip(self) -> int:
        """Tokens of a prompt have vectors like others."""
        return 0

    def begin_tokens(self, rows: Rows) -> Callable[[], TokenRows]:
        """Start a batch of tokens and return a function that waits for its vectors."""
        if self._kernel is None:
            raise RuntimeError("call open() before run()")
        if not rows:
            return lambda: TokenRows(np.zeros((0, self.dims), np.float32), np.zeros(0, np.int64))
        fetch = self._kernel.begin(rows)
        return lambda: self._finish_tokens(rows, fetch())

    def _finish_tokens(self, rows: Rows, vectors: Reals) -> TokenRows:
        """Recompute in float32 what overflowed in half precision, and leave out what the model skips."""
        lengths = np.array([len(row) for row in rows], np.int64)
        kept = self._kept[np.concatenate(rows)]
        if self._kernel is not None and self._kernel.precision != "float32":
            again = TokenRows(vectors, lengths).not_finite()
            stops = np.cumsum(lengths)
            for i in again:
                vectors[stops[i] - lengths[i] : stops[i]] = self._exact.encode([rows[i]])
            self._redone += len(again)
        counts = np.bincount(np.repeat(np.arange(len(rows)), lengths)[kept], minlength=len(rows))
        return TokenRows(vectors if kept.all() else vectors[kept], counts)

    @cached_property
    def _kept(self) -> NDArray[np.bool_]:
        """Whether a token, by its id, has a vector."""
        backend = open_backend(self.folder.transformer, self.folder.tokenizer_options).tokenizer
        kept = np.ones(max(backend.get_vocab_size(), int(self.folder.config.get("vocab_size") or 0)), bool)
        # A word that is no token would be looked up as the unknown one.
        kept[[found for word in self.pooling.skipped if (found := backend.token_to_id(word)) is not None]] = False
        return kept

    def query_vectors(self, text: str) -> Reals:
        """The vectors of a search query, expanded as the model does it."""
        row = self._read_query(text)
        expansion = self.pooling.expansion
        if expansion is None or len(row) >= expansion.length:
            return self._of_query(row, self._encode_row(row))
        whole = np.full(expansion.length, self._expanding, np.int32)
        whole[: len(row)] = row
        if expansion.attends:
            return self._of_query(whole, self._encode_row(whole))
        return self._of_query(whole, self._beside.encode_beside(whole, len(row)))

    @cached_property
    def _beside(self) -> Encoder | PlainEncoder:
        """The model in float32, for tokens that attend to others of their row than themselves."""
        if hasattr(self._kernel, "clock"):
            from shardmill.models.torch_kernels import plain_kernel

            # As PyLate has it: of a token that sees none, this attention gives zeros.
            return plain_kernel(self.folder, self._device, self.tokenizer.pad_id, "sdpa")
        return PlainEncoder(self.folder, pad_id=self.tokenizer.pad_id)

    def _encode_row(self, row: NDArray[np.int32]) -> Reals:
        if self._kernel is None:
            raise RuntimeError("call open() before a search")
        return self._kernel.encode([row])

    def _of_query(self, row: NDArray[np.int32], vectors: Reals) -> Reals:
        return vectors[self._kept[row]] if self.pooling.query_skips else vectors

    def _read_query(self, text: str) -> NDArray[np.int32]:
        tokens = self._query_tokenizer.encode([text], self.folder.prompts.get("query", ""))
        if tokens.bad or not len(tokens.rows[0]):
            raise ModelError(f"The text to search for cannot be read: {next(iter(tokens.bad.values()), 'no tokens')}.")
        return tokens.rows[0]

    @cached_property
    def _query_tokenizer(self) -> Tokenizer:
        own = self.pooling
        return load_tokenizer(replace(self.folder, marker=own.query_marker, max_tokens=own.query_length), None)

    @cached_property
    def _expanding(self) -> int:
        """The id of the token that makes queries longer."""
        assert self.pooling.expansion is not None
        backend = open_backend(self.folder.transformer, self.folder.tokenizer_options)
        name = self.pooling.expansion.token
        found = backend.mask_id if name is None else backend.tokenizer.token_to_id(name)
        if found is None:
            raise ModelError(
                f"{self.location.name} expands queries by {name or 'a mask'}, which its tokenizer does not have.",
                hint="Fetch the model again.",
            )
        return int(found)
