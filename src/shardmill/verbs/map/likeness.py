"""What one pass over all vectors leaves in memory: short codes to find rows that are alike, and the plane of PCA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.verbs.map.layout.anchors import Anchors, find_axes
from shardmill.verbs.map.layout.fitting import find_plane, on_plane
from shardmill.verbs.map.layout.whole import project
from shardmill.verbs.map.vectors import VectorBatch

NEIGHBOURS = 5
# A vector is compared along this many directions, one byte each.
_CODE_BYTES = 64
# Rows of one anchor that are compared with one another.
_MOST_COMPARED = 400


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of all points and their coordinates on the plane of PCA."""

    codes: NDArray[np.int8]
    plane: NDArray[np.float32]


def read_codes(
    batches: Iterator[VectorBatch], anchors: Anchors, points: NDArray[np.int64], on_progress: Callable[[float], None]
) -> Codes:
    """Read all vectors once; `points` are the rows that have a place, in order."""
    axes = find_axes(anchors.vectors, _CODE_BYTES)
    scale = np.abs(project(anchors.vectors, axes)).max(initial=1) / 127.0
    centre, directions = find_plane(anchors.vectors)
    codes = np.zeros((len(points), len(axes)), np.int8)
    plane = np.zeros((len(points), 2), np.float32)
    at = 0
    for batch in batches:
        own = batch.whole[batch.usable]
        stop = at + len(own)
        codes[at:stop] = np.clip(np.rint(project(own, axes) / scale), -127, 127)
        plane[at:stop] = on_plane(own, centre, directions)
        at = stop
        on_progress(batch.share)
    return Codes(codes, plane)


def find_alike(codes: NDArray[np.int8], near: NDArray[np.int32], anchors: int) -> NDArray[np.uint32]:
    """The points most like each point, among those that share one of its nearest anchors; its own number if none is."""
    from shardmill.verbs.map.kernels import find_alike as find

    shared = np.sort(near, axis=1)
    # An anchor that is named twice is looked at once.
    again = np.zeros(shared.shape, bool)
    again[:, 1:] = shared[:, 1:] == shared[:, :-1]
    points = np.repeat(np.arange(len(near)), near.shape[1])[~again.ravel()]
    owners = shared.ravel()[~again.ravel()]
    order = np.argsort(owners, kind="stable")
    starts = np.searchsorted(owners[order], np.arange(anchors + 1))
    found: Any = find(codes, near, points[order], starts, NEIGHBOURS, _MOST_COMPARED)
    alike: NDArray[np.uint32] = found
    return alike
