"""The anchors of a map: vectors with a place, the search for the nearest of them, and the place of other vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.random import COARSE, SLOTS, draw5, make_key
from shardmill.verbs.map.layout.whole import LENGTH, Whole, project

NEIGHBOURS = 15
# Wider vectors are searched along this many axes first; the candidates are then measured in all dimensions.
_WIDE, AXES = 384, 256
_CANDIDATES = 64
_STEPS = 30
_SCORED_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Placed:
    """The places of some vectors, the nearest anchors of each, and the mean of their cosine distances."""

    places: NDArray[np.float32]
    distances: NDArray[np.float32]
    nearest: NDArray[np.int32]


@dataclass(frozen=True)
class Anchors:
    """Vectors as whole numbers, all different, and their places. `axes` are those of the search, if vectors are wide.

    `a` and `b` are the curve of UMAP, which says how near a point comes to what attracts it.
    """

    vectors: Whole
    places: NDArray[np.float32]
    axes: Whole
    a: float
    b: float
    seed: int

    @property
    def dims(self) -> int:
        return int(self.vectors.shape[1])

    @cached_property
    def _searched(self) -> NDArray[np.float32]:
        return self._searchable(self.vectors)

    @cached_property
    def _lengths(self) -> NDArray[np.float64]:
        from shardmill.verbs.map.layout.kernels import lengths_of

        lengths: NDArray[np.float64] = lengths_of(self.vectors)
        return lengths

    def _searchable(self, whole: Whole) -> NDArray[np.float32]:
        return (project(whole, self.axes) if len(self.axes) else whole).astype(np.float32)

    def nearest(
        self, whole: Whole, count: int = NEIGHBOURS, on_progress: Callable[[int], None] = lambda done: None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The nearest anchors of each vector, the nearest first, and their cosine distances."""
        from shardmill.verbs.map.layout.kernels import best_of, lengths_of, measure

        count = min(count, len(self.vectors))
        offered = min(len(self.vectors), max(_CANDIDATES, 2 * count) if len(self.axes) else count)
        rows: list[Any] = [np.empty((0, count), np.int32)]
        distances: list[Any] = [np.empty((0, count), np.float64)]
        for start in range(0, len(whole), _SCORED_AT_ONCE):
            part = whole[start : start + _SCORED_AT_ONCE]
            # Products of unequal lengths; they differ from the cosine by rounding alone, and `measure` settles it.
            candidates = best_of(self._searchable(part) @ self._searched.T, offered)
            found = measure(part, lengths_of(part), self.vectors, self._lengths, candidates, count)
            rows.append(found[0])
            distances.append(found[1])
            on_progress(start + len(part))
        return np.concatenate(rows), np.concatenate(distances)

    def place(self, whole: Whole) -> Placed:
        """The places of vectors. One that equals an anchor has its place."""
        from shardmill.verbs.map.layout.kernels import name_each, same_as, settle, weigh

        if not len(whole):
            return Placed(np.empty((0, 2), np.float32), np.empty(0, np.float32), np.empty((0, 1), np.int32))
        nearest, distances = self.nearest(whole)
        same = same_as(whole, self.vectors, nearest[:, :1])
        draws = self._draw(name_each(whole))
        settled = settle(nearest, weigh(distances), self.places.astype(np.float64), draws, self.a, self.b)
        places = settled.astype(np.float32)
        places[same >= 0] = self.places[same[same >= 0]]
        return Placed(places, self._strangeness(distances, same), nearest)

    def _strangeness(self, distances: NDArray[np.float64], same: NDArray[np.int32]) -> NDArray[np.float32]:
        """The mean distance to the nearest anchors, without the one that is the vector itself."""
        others = max(1, distances.shape[1] - 1)
        shift = np.where((same >= 0) & (distances.shape[1] > 1), 1, 0)
        columns = shift[:, None] + np.arange(others)[None]
        means: NDArray[np.float32] = (np.take_along_axis(distances, columns, 1).sum(axis=1) / others).astype(np.float32)
        return means

    def _draw(self, names: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The anchors that repel each vector, at each step."""
        key = make_key(self.seed, "map")
        drawn = np.empty((_STEPS, len(names), SLOTS), np.int32)
        for step in range(_STEPS):
            for slot, column in enumerate(draw5(names, key, block=step)):
                drawn[step, :, slot] = np.floor(column * (COARSE * len(self.vectors)))
        return drawn


def search_axes(vectors: Whole) -> Whole:
    """The axes for the search among vectors: none if they are not wide."""
    return find_axes(vectors, AXES) if vectors.shape[1] > _WIDE else np.empty((0, vectors.shape[1]), np.int16)


def find_axes(vectors: Whole, count: int) -> Whole:
    """The directions along which the vectors are longest, as whole numbers."""
    dims = vectors.shape[1]
    products = np.zeros((dims, dims))
    for start in range(0, len(vectors), 4096):
        part = vectors[start : start + 4096].astype(np.float64) / LENGTH
        products += part.T @ part
    _, directions = np.linalg.eigh(products)
    top = directions[:, ::-1][:, :count].T
    return np.rint(top * LENGTH).astype(np.int16)
