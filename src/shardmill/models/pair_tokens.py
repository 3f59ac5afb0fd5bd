"""Tokens of two texts that are read together: both in one row, with the type of each token.

A model gets the types only if its tokenizer names them among its inputs (`model_input_names`), as in transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.backend import Backend, names_types
from shardmill.models.folder import read_transformer_config

Ints = NDArray[np.int64]
# Families that do not tell the two texts apart; of others, a config.json without `type_vocab_size` says nothing.
_UNTYPED = {"deberta-v2", "distilbert", "modernbert", "mpnet"}


@dataclass(frozen=True, slots=True)
class PairTokens:
    """One pair as the model takes it: ids, and which of the two texts each belongs to."""

    ids: Ints
    types: Ints


@dataclass(frozen=True, slots=True)
class PairFrame:
    """The special tokens of a pair: before the first text, between both, after the second; and the types of both."""

    parts: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    types: tuple[int, int]


class PairTokenizer:
    """A folder's tokenizer. `longest` is the maximum number of tokens by its files, huge if they give none.

    `typed` says whether a model gets the types; without `named_types` all models do, as in runs of earlier versions.
    """

    def __init__(self, backend: Backend, *, named_types: bool = True) -> None:
        self.tokenizer, self.longest = backend.tokenizer, backend.longest
        self._side = "left" if backend.from_left else "right"
        self._pad_id = backend.pad_id or 0
        self.typed = backend.typed or not named_types

    def encode(self, firsts: Sequence[str], seconds: Sequence[str], limit: int) -> list[PairTokens]:
        """Tokenize pairs; of one with more than `limit` tokens, the longer text is cut."""
        self.tokenizer.enable_truncation(limit, strategy="longest_first", direction=self._side)
        try:
            made: list[Any] = self.tokenizer.encode_batch(list(zip(firsts, seconds, strict=True)))
        finally:
            self.tokenizer.no_truncation()
        return [self.pair(each.ids, each.type_ids) for each in made]

    def pair(self, ids: Sequence[int], types: Sequence[int]) -> PairTokens:
        """One pair, with its types if the model gets them, else with zeros."""
        return PairTokens(np.array(ids, np.int64), np.array(types if self.typed else [0] * len(ids), np.int64))

    def pad(self, pairs: Sequence[PairTokens]) -> tuple[Ints, Ints, Ints]:
        """Ids padded to the longest pair, which of them are there, and their types."""
        lengths = np.array([len(pair.ids) for pair in pairs])
        real = np.arange(lengths.max()) < lengths[:, None]
        ids, types = np.full(real.shape, self._pad_id, np.int64), np.zeros(real.shape, np.int64)
        ids[real] = np.concatenate([pair.ids for pair in pairs])
        types[real] = np.concatenate([pair.types for pair in pairs])
        return ids, real.astype(np.int64), types


def find_frame(tokenizer: Any, name: str) -> PairFrame:
    """What a tokenizer puts around two texts."""
    made = tokenizer.encode("a", "b")
    sides = made.sequence_ids
    if None not in sides or sides.index(0) > sides.index(1) or sides[0] is not None:
        raise ModelError(f"{name} puts the second text first or marks no start.", hint="Choose another model.")
    first, last = sides.index(0), len(sides) - sides[::-1].index(0)
    second, end = sides.index(1), len(sides) - sides[::-1].index(1)
    parts = tuple(made.ids[:first]), tuple(made.ids[last:second]), tuple(made.ids[end:])
    return PairFrame(parts, (made.type_ids[first], made.type_ids[second]))


def lacks_types(folder: Path) -> bool:
    """Whether a model reads types that its tokenizer does not name: an earlier version gave them, with other logits."""
    config = read_transformer_config(folder)
    types = config.get("type_vocab_size", 0 if config.get("model_type") in _UNTYPED else 2)
    return int(types) > 1 and not names_types(folder)
