"""Statistics of a stream or a table of parameters, to check that a config does what was intended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from shardmill.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Summary:
    """One parameter over many items; choices of texts have counts instead of moments."""

    count: int
    mean: float
    deviation: float
    low: float
    high: float
    counts: dict[str, int]


def compute_statistics(params: Mapping[str, Any] | Iterable[dict[str, Any]]) -> dict[str, Summary]:
    """Statistics of a table, or of a stream, which is read to its end one chunk at a time."""
    tables: Iterable[Mapping[str, Any]] = [params] if isinstance(params, Mapping) else _gather(params)
    sums: dict[str, _Sums] = {}
    for table in tables:
        for name, column in table.items():
            sums.setdefault(name, _Sums()).add(np.asarray(column))
    if not any(s.count for s in sums.values()):
        raise UsageError("There are no parameters.", hint="Pass a stream that is not empty and was not read before.")
    return {name: s.summary() for name, s in sums.items()}


def _gather(stream: Iterable[dict[str, Any]]) -> Iterable[dict[str, list[Any]]]:
    rows = iter(stream)
    while chunk := list(islice(rows, 8192)):
        yield {name: [row[name] for row in chunk] for name in chunk[0]}


class _Sums:
    """Moments merged chunk by chunk (Chan, Golub, LeVeque), so that large numbers lose no precision."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.low, self.high = float("inf"), float("-inf")
        self.counts: dict[str, int] = {}

    def add(self, column: np.ndarray[Any, Any]) -> None:
        if not len(column):
            return
        if column.dtype.kind == "U":
            for value, times in zip(*np.unique(column, return_counts=True), strict=True):
                self.counts[str(value)] = self.counts.get(str(value), 0) + int(times)
            self.count += len(column)
            return
        values = column.astype(np.float64)
        mean, count = float(values.mean()), len(values)
        apart, total = mean - self.mean, self.count + count
        self.squares += float(((values - mean) ** 2).sum()) + apart**2 * self.count * count / total
        self.mean += apart * count / total
        self.count = total
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    def summary(self) -> Summary:
        if self.counts:
            return Summary(self.count, *(float("nan"),) * 4, counts=self.counts)
        return Summary(self.count, self.mean, (self.squares / self.count) ** 0.5, self.low, self.high, {})
