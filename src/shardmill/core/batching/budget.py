"""Groups items into batches within a cost budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def plan_batches(costs: NDArray[np.int64], budget: int, *, padded: bool = True) -> list[NDArray[np.int64]]:
    """Group items so that the cost of a batch stays within `budget`: count x largest cost, or the sum if not padded.

    Longest first: the first batch is the worst case, so memory peaks at once and not an hour later.
    An item over the budget is a batch by itself.

    >>> [b.tolist() for b in plan_batches(np.array([3, 9, 4, 5]), 10)]
    [[1], [3, 2], [0]]
    >>> [b.tolist() for b in plan_batches(np.array([3, 9, 4, 5]), 10, padded=False)]
    [[1], [3, 2], [0]]
    """
    order = np.argsort(-costs, kind="stable")
    ends = np.cumsum(costs[order])
    batches: list[NDArray[np.int64]] = []
    at = 0
    while at < len(order):
        if padded:
            size = budget // max(1, int(costs[order[at]]))
        else:
            before = ends[at] - costs[order[at]]
            size = int(np.searchsorted(ends, before + budget, side="right")) - at
        batches.append(order[at : at + max(1, size)])
        at += max(1, size)
    return batches


@dataclass(slots=True)
class Budget:
    """A batch budget that shrinks when memory runs out and grows back later.

    After an overflow the budget is halved; after `patience` batches without one it grows by a quarter, up to its
    initial value. After each overflow it grows more slowly.
    """

    limit: int
    patience: int = 64
    now: int = 0
    overflows: int = 0
    _calm: int = 0

    def __post_init__(self) -> None:
        self.now = self.now or self.limit

    def shrink(self, failed: int) -> None:
        """Halve the current budget, or the cost of the failed batch if that is less."""
        self.now = max(1, min(self.now, failed) // 2)
        self.overflows += 1
        self._calm = 0

    def succeed(self) -> None:
        if self.now >= self.limit:
            return
        self._calm += 1
        if self._calm >= self.patience * max(1, self.overflows):
            self.now = min(self.limit, self.now + max(1, self.now // 4))
            self._calm = 0
