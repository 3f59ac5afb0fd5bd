"""Sentences of several lengths that a worker embeds before its first batch, and when two results agree.

The lowest cosines that pass, by precision, are here for all: a worker's trial, `verify` of runs and of tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Of vectors, compared with float32. Measured: float16 0.999999 with torch and 0.99994 with OpenVINO on ARM. The error
# of bfloat16 grows with the number of layers: on an H200, random weights, 0.99997 with 6 layers and 0.99985 with 24 of
# BERT's shape, 0.9997 with 28 and 36 of Qwen3's (0.998 with larger weights, which the trial then refuses). int8 is for
# files that are quantised, by two libraries that round the same numbers at other places: bge-small with OpenVINO and
# with ONNX Runtime, lowest of 460 texts 0.993, median 0.9998.
_LOWEST_COSINES = {"float32": 0.99999, "float16": 0.9998, "bfloat16": 0.999, "int8": 0.98}
# Of vectors that are rounded because a user asks for it, compared with float32: the lowest, and the mean. Lowest are
# texts of few words, with few tokens to average: MiniLM's of "Yes." 0.988, of 300 reviews 0.9928 and 0.9985. In fp8, of
# 1,000 reviews, 0.9931 and 0.9972; random weights of Qwen3-0.6B's shape, with 28 layers, 0.989 and 0.993.
_ROUNDED = {"int8": (0.95, 0.99), "fp8": (0.95, 0.985)}
# Of the hidden state of a single token, which pooling has not averaged.
LOWEST_TOKEN_COSINES = {"float32": 0.99999, "float16": 0.999, "bfloat16": 0.998}
# A trial sees a few sentences, a sample thousands of rows. On an H200, random weights of BERT's shape that float16 is
# refused for, the worst of 5,000 rows in float32 was below the trial's limit. The other limits have room.
_LOWEST_OF_MANY = {**_LOWEST_COSINES, "float32": 0.99996}
_MOST_TRIED_TOKENS = 1024
_LONG = (
    "The survey was taken over eleven summers by two people in a small boat, who wrote down the depth, the colour of "
    "the water and every bird they saw, and who were wrong, as they later found, about almost all of the birds. "
)
GOLDEN = (
    "Yes.",
    "The battery died after an hour.",
    "A train left Lyon at 08:14 and reached Turin late; nobody on board, says the report, had been told why.",
    _LONG * 3,
)


def reach_past_window(rows: Sequence[NDArray[np.int32]], window: int, limit: int | None) -> list[NDArray[np.int32]]:
    """These rows, and one of twice the window plus one if none is that long; at most `limit` and 1,024 tokens."""
    tokens = min(2 * window + 1, limit or _MOST_TRIED_TOKENS, _MOST_TRIED_TOKENS)
    if not window or tokens <= max(map(len, rows)):
        return list(rows)
    return [*rows, np.resize(np.concatenate(rows), tokens)]


def lowest_cosine(precision: str) -> float:
    """The lowest cosine with float32 that vectors of a precision may have; "" if it was not recorded."""
    return _LOWEST_COSINES.get(precision, _LOWEST_COSINES["bfloat16"])


def lowest_of_tokens(precision: str) -> float:
    """The same for vectors of single tokens."""
    return LOWEST_TOKEN_COSINES.get(precision, LOWEST_TOKEN_COSINES["bfloat16"])


def lowest_rounded(precision: str) -> float:
    """The lowest cosine with float32 of vectors in a precision that was asked for."""
    return _ROUNDED.get(precision, (lowest_cosine(precision), 0.0))[0]


def lowest_mean(precision: str) -> float:
    """The lowest mean of them."""
    return _ROUNDED.get(precision, (0.0, lowest_cosine(precision)))[1]


def lowest_of_many(precision: str) -> float:
    """The same for the rows of a sample."""
    return _LOWEST_OF_MANY.get(precision, _LOWEST_OF_MANY["bfloat16"])


def cosines(seen: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cosine of each row with the expected row."""
    lengths = np.linalg.norm(seen, axis=1) * np.linalg.norm(expected, axis=1)
    found: NDArray[np.float32] = (seen * expected).sum(axis=1) / np.maximum(lengths, 1e-30)
    return found


def agree(seen: NDArray[np.float32], expected: NDArray[np.float32], precision: str, *, of_tokens: bool = False) -> bool:
    """Whether every row is finite and has the direction of the expected row, as closely as the precision allows.

    Vectors `of_tokens` may differ more: no mean has levelled them.
    """
    lowest = lowest_of_tokens(precision) if of_tokens else lowest_cosine(precision)
    return bool(np.isfinite(seen).all() and (cosines(seen, expected) >= lowest).all())
