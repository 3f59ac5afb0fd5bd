"""What a network of pairs is, and when two give the same logits: of golden pairs, alone and in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from shardmill.core.errors import ModelError
from shardmill.models.golden import GOLDEN, reach_past_window
from shardmill.models.networks.stored import Reals
from shardmill.models.pair_tokens import Ints, PairTokenizer, PairTokens

# The largest difference between a golden pair's logits and those in float32, by the largest of them if that is above 1.
MOST_DISTANT = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.05}
# A sample of many rows may lie this many times as far from float32 as the golden pairs.
_OF_MANY = 4
_GOLDEN_PAIRS = ((GOLDEN[1], GOLDEN[0]), (GOLDEN[2], GOLDEN[1]), (GOLDEN[1], GOLDEN[3]))


class PairNetwork(Protocol):
    """Ids, mask and types of a padded batch -> logits: one row per pair, from a reader one per token.

    `longest` is the number of tokens that it has positions for; `known_ids` the number of ids that it has vectors for.
    One that is not `padded` is a `PackedPairs`.
    """

    longest: int
    known_ids: int

    @property
    def padded(self) -> bool: ...
    @property
    def precision(self) -> str: ...
    @property
    def name(self) -> str: ...
    def __call__(self, ids: Ints, mask: Ints, types: Ints) -> Reals: ...


def most_distant(precision: str) -> float:
    """How far a score of a result may lie from the same one in float32; "" if its precision was not recorded."""
    return _OF_MANY * MOST_DISTANT.get(precision, MOST_DISTANT["bfloat16"])


def golden_pairs(tokens: PairTokenizer, longest: int, window: int = 0) -> list[PairTokens]:
    """Pairs of several lengths, and one that reaches past the windows of the network's layers, if it has any."""
    firsts, seconds = zip(*_GOLDEN_PAIRS, strict=True)
    pairs = list(tokens.encode(firsts, seconds, longest))
    rows = reach_past_window([pair.ids.astype(np.int32) for pair in pairs], window, longest)
    return [*pairs, *(PairTokens(row.astype(np.int64), np.zeros(len(row), np.int64)) for row in rows[len(pairs) :])]


def compute_alone(network: PairNetwork, pairs: Sequence[PairTokens], name: str) -> list[Reals]:
    """The logits of each pair, without padding."""
    ones = [np.ones((1, len(pair.ids)), np.int64) for pair in pairs]
    try:
        found = [
            network(pair.ids[None].astype(np.int64), one, pair.types[None].astype(np.int64))[0]
            for pair, one in zip(pairs, ones, strict=True)
        ]
    except (ValueError, IndexError) as error:
        raise ModelError(
            f"{name} cannot be run: {error}.", hint="Its weights do not belong to its config.json."
        ) from error
    if not all(np.isfinite(logits).all() for logits in found):
        raise ModelError(f"{name} gives NaN or infinity in float32.", hint="Fetch the model again.")
    return found


def difference(seen: Reals, expected: Reals) -> float:
    """The largest difference between logits, by the largest logit; of a reader's tokens, those that are there."""
    there = seen[: len(expected)]
    if not np.isfinite(there).all():
        return np.inf
    return float(np.abs(there - expected).max() / max(1.0, np.abs(expected).max()))
