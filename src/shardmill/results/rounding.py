"""What a precision costs that a user asked for: vectors of a sample beside the same ones in float32.

Design: docs/design/precisions.md
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.models.golden import cosines, lowest_mean

_NEAREST = 10
# Nearest neighbours are looked for among the sample; of fewer rows ten are too many of all.
_LEAST_ROWS = 3 * _NEAREST
# The products of these with each other are held in memory.
_MOST_ROWS = 2_000


@dataclass(slots=True)
class RoundedVectors:
    """Stored vectors of a run in `precision`, and the same rows computed again in float32."""

    precision: str
    stored: list[NDArray[np.float32]] = field(default_factory=list)
    again: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, stored: Any, again: Any) -> None:
        """Keep a pair of values of a list column, up to some number of them."""
        if len(self.stored) < _MOST_ROWS and stored.is_valid and again.is_valid:
            for kept, value in ((self.stored, stored), (self.again, again)):
                kept.append(np.asarray(value.values.to_numpy(zero_copy_only=False), np.float32))

    def measure(self) -> dict[str, Any]:
        """Figures for the report; nothing if no vector was compared."""
        if not self.stored:
            return {}
        stored, again = np.stack(self.stored), np.stack(self.again)
        close = cosines(stored, again)
        figures: dict[str, Any] = {
            "precision": self.precision,
            "rows_beside_float32": len(close),
            "lowest_cosine": round(float(close.min()), 5),
            "mean_cosine": round(float(close.mean()), 5),
        }
        if len(close) >= _LEAST_ROWS:
            figures["ten_nearest_that_stay"] = round(share_that_stays(stored, again), 4)
        return figures

    def describe(self, figures: dict[str, Any]) -> str:
        """The figures as the end of a sentence."""
        if not figures:
            return ""
        said = f", mean {figures['mean_cosine']:.5f}: {self.precision}"
        if "ten_nearest_that_stay" in figures:
            said += f" keeps {figures['ten_nearest_that_stay']:.0%} of the ten nearest of each among them"
        return said

    def is_close(self, figures: dict[str, Any]) -> bool:
        """Whether the mean cosine is what the precision allows."""
        return not figures or bool(figures["mean_cosine"] >= lowest_mean(self.precision))


def share_that_stays(before: NDArray[np.float32], after: NDArray[np.float32]) -> float:
    """The mean share of the ten nearest of each row, by cosine and without itself, that are the same in both.

    >>> some = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    >>> share_that_stays(some, 2 * some)
    1.0
    """
    old, new = _nearest(before), _nearest(after)
    return float(np.mean([len(np.intersect1d(*pair)) / _NEAREST for pair in zip(old, new, strict=True)]))


def _nearest(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    scores = unit @ unit.T
    np.fill_diagonal(scores, -np.inf)
    return np.argpartition(-scores, _NEAREST - 1, axis=1)[:, :_NEAREST]
