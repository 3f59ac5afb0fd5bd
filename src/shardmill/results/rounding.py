"""What a precision or a type costs that a user asked for: vectors of a sample beside the same ones in float32.

Design: docs/design/precisions.md
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.quantised import Quantiser
from shardmill.models.golden import cosines, lowest_mean
from shardmill.models.retrieval.vectors import normalized
from shardmill.tasks.base import Task

_NEAREST = 10
# Nearest neighbours are looked for among the sample; of fewer rows ten are too many of all.
_LEAST_ROWS = 3 * _NEAREST
# The products of these with each other are held in memory.
_MOST_ROWS = 2_000


@dataclass(slots=True)
class RoundedVectors:
    """Stored vectors of a run in `precision`, and the same rows computed again in float32.

    With a `quantiser`, its type is what costs.
    """

    precision: str
    quantiser: Quantiser | None = None
    stored: list[NDArray[np.float32]] = field(default_factory=list)
    again: list[NDArray[np.float32]] = field(default_factory=list)

    @classmethod
    def of(cls, task: Task) -> RoundedVectors | None:
        """For the rows of a task; None if nobody asked for less than float32 or float16."""
        if task.quantiser is not None:
            return cls(task.quantiser.dtype, task.quantiser)
        return cls(task.rounded) if task.rounded else None

    def add(self, stored: Any, again: Any) -> None:
        """Keep a stored vector and the one computed again, up to some number of them."""
        if len(self.stored) < _MOST_ROWS and stored.is_valid and again.is_valid:
            coded = self.quantiser
            self.stored.append(_numbers(stored) if coded is None else coded.decode(coded.read(stored.as_py()))[0])
            self.again.append(_numbers(again))

    def measure(self) -> dict[str, Any]:
        """Figures for the report; nothing if no vector was compared."""
        if not self.stored:
            return {}
        stored, again = np.stack(self.stored), np.stack(self.again)
        close = cosines(stored, again)
        figures: dict[str, Any] = {
            "precision" if self.quantiser is None else "dtype": self.precision,
            "rows_beside_float32": len(close),
            "lowest_cosine": round(float(close.min()), 5),
            "mean_cosine": round(float(close.mean()), 5),
        }
        if len(close) >= _LEAST_ROWS:
            queries = stored if self.quantiser is None else again
            figures["ten_nearest_that_stay"] = round(share_that_stays(again, stored, queries), 4)
        return figures

    def describe(self, figures: dict[str, Any]) -> str:
        """The figures as the end of a sentence."""
        if not figures:
            return ""
        said = f", mean {figures['mean_cosine']:.5f}: {self.precision}"
        if self.quantiser is not None:
            said = f"; {self.precision} has a mean cosine of {figures['mean_cosine']:.5f} with float32,"
        if "ten_nearest_that_stay" in figures:
            said += f" keeps {figures['ten_nearest_that_stay']:.0%} of the ten nearest of each among them"
        return said

    def is_close(self, figures: dict[str, Any]) -> bool:
        """Whether the mean cosine is what the precision allows."""
        if not figures or self.quantiser is not None:
            return True
        return bool(figures["mean_cosine"] >= lowest_mean(self.precision))


def share_that_stays(
    before: NDArray[np.float32], after: NDArray[np.float32], queries: NDArray[np.float32] | None = None
) -> float:
    """The mean share of the ten nearest of each row, by cosine and without itself, that are the same in both.

    Among `after`, what is near to `queries` is looked for, if they are given: search keeps them in float32.

    >>> some = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    >>> share_that_stays(some, 2 * some)
    1.0
    """
    old, new = _nearest(before, before), _nearest(after if queries is None else queries, after)
    return float(np.mean([len(np.intersect1d(*pair)) / _NEAREST for pair in zip(old, new, strict=True)]))


def _nearest(queries: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    scores = queries @ normalized(vectors).T
    np.fill_diagonal(scores, -np.inf)
    return np.argpartition(-scores, _NEAREST - 1, axis=1)[:, :_NEAREST]


def _numbers(vector: Any) -> NDArray[np.float32]:
    return np.asarray(vector.values.to_numpy(zero_copy_only=False), np.float32)
