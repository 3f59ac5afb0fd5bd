"""Counts in a report: how many of something each item of a run has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.run.reports.shape import Chart

_BARS = 10


@dataclass(frozen=True, slots=True)
class Counts:
    """How many items there are, how many they have on average and at most, and the items in tenths of the most."""

    items: int
    mean: float
    most: int
    counts: tuple[int, ...]

    @classmethod
    def of(cls, numbers: Iterable[NDArray[Any]]) -> Counts:
        """Sum up numbers, one per item.

        >>> Counts.of([np.array([1, 3]), np.array([10])])
        Counts(items=3, mean=4.667, most=10, counts=(0, 1, 0, 1, 0, 0, 0, 0, 0, 1))
        """
        every = np.concatenate([np.zeros(0, np.int64), *numbers])
        most = int(every.max(initial=0))
        bars = np.histogram(every, _BARS, (0, most))[0].tolist() if most else ()
        mean = float(every.mean()) if len(every) else 0.0
        return cls(len(every), round(mean, 3), most, tuple(bars))

    def chart(self, things: str) -> tuple[Chart, ...]:
        """Items by their number of `things`, as bars; no chart if none has any."""
        places = tuple(f"{self.most * place // _BARS:,}" for place in range(_BARS))
        title = f"items by their number of {things}, each bar from one number on"
        return (Chart(title, tuple(map(float, self.counts)), places, bars=True),) if self.counts else ()

    def describe(self) -> str:
        """The mean and the most, in words."""
        return f"{self.mean:,.1f}, {self.most:,} at most"
