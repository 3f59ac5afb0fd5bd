"""Clusters of points on the map at nested levels, by HDBSCAN, from one spanning tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.extras import missing_package

Labels = NDArray[np.int32]

_LEVELS = 3
# With fewer points there are no clusters to speak of.
_FEWEST_POINTS = 40
_SMALLEST = 8
# A level has clusters of at least this share of all points, the coarsest level first.
_SHARES = (1 / 40, 1 / 200, 1 / 1000)
# A level is shown if it has this many times the clusters of the coarser one.
_FINER = 1.5
_NEIGHBOURS = 10


@dataclass(frozen=True, slots=True)
class Clusters:
    """The cluster of each point on each level, the coarsest first; -1 if it is in none.

    `cells` has one number for each combination, and `of_cell` the clusters of a cell, one row per level.
    """

    levels: tuple[Labels, ...]
    cells: NDArray[np.uint16]
    of_cell: NDArray[np.int32]


def find_clusters(places: NDArray[np.float32]) -> Clusters:
    """Clusters of points: each finer one lies within one coarser cluster, or outside all of them."""
    levels = _find_levels(places)
    stacked = np.stack(levels) if levels else np.zeros((0, len(places)), np.int32)
    if not levels:
        return Clusters((), np.zeros(len(places), np.uint16), np.zeros((0, 1), np.int32))
    kinds, cells = np.unique(stacked, axis=1, return_inverse=True)
    return Clusters(tuple(levels), cells.reshape(-1).astype(np.uint16), kinds.astype(np.int32))


def _find_levels(places: NDArray[np.float32]) -> list[Labels]:
    if len(places) < _FEWEST_POINTS:
        return []
    tree = _spanning_tree(places)
    levels: list[Labels] = []
    for share in reversed(_SHARES):
        size = max(_SMALLEST, round(share * len(places)))
        labels = _cut(tree, size)
        count = int(labels.max(initial=-1)) + 1
        if count < 2 or (levels and count * _FINER > int(levels[-1].max()) + 1):
            continue
        levels.append(_around(labels, levels[-1]) if levels else labels)
    return [_by_size(labels) for labels in reversed(levels)][:_LEVELS]


def _spanning_tree(places: NDArray[np.float32]) -> Any:
    return _library().compute_minimum_spanning_tree(
        places.astype(np.float64), min_samples=_NEIGHBOURS, reproducible=True
    )[0]


def _cut(tree: Any, size: int) -> Labels:
    found = _library().clusters_from_spanning_tree(tree, min_cluster_size=size)
    return np.asarray(found[0], np.int32)


def _around(coarse: Labels, fine: Labels) -> Labels:
    """The coarse clusters, such that all points of a finer cluster are where most of them are."""
    result = coarse.copy()
    inside = fine >= 0
    width = int(coarse.max()) + 2
    votes = np.bincount(fine[inside] * width + coarse[inside] + 1, minlength=(int(fine.max()) + 1) * width)
    winners = votes.reshape(-1, width).argmax(axis=1) - 1
    result[inside] = winners[fine[inside]]
    return result


def _by_size(labels: Labels) -> Labels:
    """The same clusters, the largest numbered 0."""
    sizes = np.bincount(labels[labels >= 0], minlength=int(labels.max()) + 1)
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]
    numbers = np.full(len(sizes) + 1, -1, np.int32)
    numbers[order] = np.arange(len(order))
    return numbers[labels]


def _library() -> Any:
    try:
        from fast_hdbscan import hdbscan
    except ImportError as error:
        raise missing_package("fast-hdbscan") from error
    return hdbscan
