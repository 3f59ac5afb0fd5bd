"""Tokens of two texts that are read together: both in one row, with the type of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.models.backend import Backend

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PairTokens:
    """One pair as the model takes it: ids, and which of the two texts each belongs to."""

    ids: Ints
    types: Ints


class PairTokenizer:
    """A folder's tokenizer. `longest` is the maximum number of tokens by its files, huge if they give none."""

    def __init__(self, backend: Backend) -> None:
        self.tokenizer, self.longest = backend.tokenizer, backend.longest
        self._side = "left" if backend.from_left else "right"
        self._pad_id = backend.pad_id or 0

    def encode(self, firsts: Sequence[str], seconds: Sequence[str], limit: int) -> list[PairTokens]:
        """Tokenize pairs; of one with more than `limit` tokens, the longer text is cut."""
        self.tokenizer.enable_truncation(limit, strategy="longest_first", direction=self._side)
        try:
            made: list[Any] = self.tokenizer.encode_batch(list(zip(firsts, seconds, strict=True)))
        finally:
            self.tokenizer.no_truncation()
        return [PairTokens(np.array(each.ids, np.int64), np.array(each.type_ids, np.int64)) for each in made]

    def pad(self, pairs: Sequence[PairTokens]) -> tuple[Ints, Ints, Ints]:
        """Ids padded to the longest pair, which of them are there, and their types."""
        lengths = np.array([len(pair.ids) for pair in pairs])
        real = np.arange(lengths.max()) < lengths[:, None]
        ids, types = np.full(real.shape, self._pad_id, np.int64), np.zeros(real.shape, np.int64)
        ids[real] = np.concatenate([pair.ids for pair in pairs])
        types[real] = np.concatenate([pair.types for pair in pairs])
        return ids, real.astype(np.int64), types
