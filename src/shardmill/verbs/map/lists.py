"""What a person wants to know of a dataset: its outliers, its duplicates, its empty texts, and what has no place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardmill.verbs.map.page_data import ListEntry, MapList

_SHOWN = 100
_SHOWN_TWINS = 50
# An outlier is this many times as far from all others as points usually are, in spreads of the middle half.
_FAR = 3.0


def list_outliers(distances: NDArray[np.float32], names: Sequence[str]) -> MapList:
    """The points that are far from everything, the farthest first."""
    low, middle, high = np.quantile(distances, [0.25, 0.5, 0.75]) if len(distances) else (0.0, 0.0, 0.0)
    far = np.flatnonzero(distances > high + _FAR * max(high - low, 1e-6))
    order = far[np.lexsort((far, -distances[far]))]
    entries = [
        ListEntry(names[i], (int(i),), f"distance {distances[i]:.2f}, usually {middle:.2f}") for i in order[:_SHOWN]
    ]
    return MapList("Outliers", len(far), tuple(entries))


def find_twins(digests: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The groups of points that are equal, the largest first."""
    order = np.argsort(digests, kind="stable")
    edges = np.flatnonzero(np.diff(digests[order])) + 1
    groups = [group for group in np.split(order, edges) if len(group) > 1]
    return sorted(groups, key=lambda group: (-len(group), int(group[0])))


def list_duplicates(groups: Sequence[NDArray[np.int64]], names: Sequence[str]) -> MapList:
    """The groups of equal items; the total counts every item but the first of each group."""
    entries = [
        ListEntry(names[group[0]], tuple(map(int, group[:_SHOWN_TWINS])), f"{len(group):,} times")
        for group in groups[:_SHOWN]
    ]
    return MapList("Duplicates", sum(len(group) - 1 for group in groups), tuple(entries))


def list_rows(title: str, rows: Sequence[int], ids: Sequence[str], points: Sequence[int | None], note: str) -> MapList:
    """Some rows by their ids, with their points if they have one."""
    shown = zip(ids[:_SHOWN], points[:_SHOWN], strict=False)
    entries = tuple(ListEntry(id, () if point is None else (point,), note) for id, point in shown)
    return MapList(title, len(rows), entries)
