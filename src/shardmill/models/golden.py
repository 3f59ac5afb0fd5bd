"""Sentences of several lengths that a worker embeds before its first batch, and when two results agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LOWEST_COSINE = 0.999
_LOWEST_PRECISE_COSINE = 0.99999
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


def agree(seen: NDArray[np.float32], expected: NDArray[np.float32], *, precise: bool = False) -> bool:
    """Whether every row is finite and has the direction of the expected row."""
    lengths = np.linalg.norm(seen, axis=1) * np.linalg.norm(expected, axis=1)
    cosines = (seen * expected).sum(axis=1) / np.maximum(lengths, 1e-30)
    return bool(np.isfinite(seen).all() and (cosines >= (_LOWEST_PRECISE_COSINE if precise else _LOWEST_COSINE)).all())
