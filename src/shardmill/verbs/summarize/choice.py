"""Which sentences of a text stand for all of it: near its centre, early, and unlike those already chosen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Tuned on the even half of 500 news items (docs/benchmarks/summaries.md); the odd half is what the page reports.
_LEAD = 0.6
_NOVELTY = 0.3
# Scores this close are equal, and the earlier sentence wins: vectors of one text differ in their last bits by batch.
_EQUAL = 1e-4

Vectors = NDArray[np.float32]
Numbers = NDArray[np.int64]


def score_sentences(vectors: Vectors, numbers: Numbers, centre: Vectors, *, lead: bool) -> NDArray[np.float64]:
    """How well each sentence stands for the text: its cosine with the centre, and more for the first sentences."""
    length = float(np.linalg.norm(centre))
    near = vectors.astype(np.float64) @ (centre.astype(np.float64) / (length or 1.0))
    return near + _LEAD / np.sqrt(1 + numbers) if lead else near


def choose_sentences(vectors: Vectors, scores: NDArray[np.float64], count: int) -> list[int]:
    """Choose up to `count` sentences, the best first; each next one loses by its likeness to those before it.

    >>> choose_sentences(np.eye(3, dtype=np.float32)[[0, 0, 1]], np.array([0.9, 0.9, 0.8]), 2)
    [0, 2]
    """
    chosen: list[int] = []
    likeness = np.zeros(len(scores))
    left = np.ones(len(scores), bool)
    while left.any() and len(chosen) < count:
        worth = np.where(left, scores - _NOVELTY * likeness, -np.inf)
        best = int(np.flatnonzero(worth >= worth.max() - _EQUAL)[0])
        chosen.append(best)
        left[best] = False
        likeness = np.maximum(likeness, vectors @ vectors[best])
    return chosen
