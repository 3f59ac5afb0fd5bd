"""Compares what a vector database has with the rows of a run: every point, by its id, its payload and its vector.

Where the store keeps vectors as they are, their bits count. Where it brings them to length 1, two projections of each
direction are compared, with a tolerance: they take 8 bytes a row, and rows may come in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.hashing import Hashes, hash_column, hash_inputs, hash_rows, mix
from shardmill.plan import WINDOW
from shardmill.sinks.points.base import Point, PointDelivery
from shardmill.sinks.points.payload import DIGEST, hash_payloads

# Rounding moves a projection by some millionths, and a change of a thousandth of the vector by about a thousandth.
_TOLERANCE = 1e-4
_SEED = 34
# Rows of a run that share an id are compared one by one, up to this number.
_MOST_ALIKE = 64


@dataclass(frozen=True, slots=True)
class PointDifference:
    """How the points of a store differ from the rows of a run; hashes of keys.

    `missing` rows have no point, or share an id with a row that replaced them. `doubled` rows are there under another
    id, too. Of `leftover` rows the store has what the run has not: a vector for a row without one, or later windows of
    the item. `others` counts points that have nothing to do with the run, `without_vector` rows that are not stored.
    """

    missing: Hashes
    changed: Hashes
    doubled: Hashes
    leftover: Hashes
    others: int
    without_vector: int

    @property
    def any(self) -> bool:
        return bool(len(self.missing) or len(self.changed) or len(self.doubled) or len(self.leftover))


def compare_points(store: PointDelivery, rows: Iterable[pa.RecordBatch]) -> PointDifference:
    """Read the rows of a run, then all points of the store."""
    wanted = _Wanted(store)
    for batch in rows:
        wanted.add(batch)
    wanted.sort()
    for page in store.pages():
        wanted.meet(page)
    return wanted.difference()


@dataclass
class _Wanted:
    """The points that a run gives, and what was seen of them."""

    store: PointDelivery
    _ids: list[Hashes] = field(default_factory=list)
    _keys: list[Hashes] = field(default_factory=list)
    _contents: list[Hashes] = field(default_factory=list)
    _digests: list[Hashes] = field(default_factory=list)
    _shadows: list[NDArray[np.float32]] = field(default_factory=list)
    _unstored: list[Hashes] = field(default_factory=list)
    _unstored_keys: list[Hashes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._axes = np.random.default_rng(_SEED).standard_normal((self.store.dims, 2))

    def add(self, batch: pa.RecordBatch) -> None:
        points = [point for point, _, _ in self.store.points(batch)]
        keys = hash_rows(batch.select(list(self.store.shipment.key)))
        is_stored = np.array([point.vector.size > 0 for point in points], bool)
        ids = _hash_ids([point.id for point in points])
        self._unstored.append(ids[~is_stored])
        self._unstored_keys.append(keys[~is_stored])
        stored = [point for point in points if point.vector.size]
        contents, shadows = self._look_at(stored)
        self._ids.append(ids[is_stored])
        self._keys.append(keys[is_stored])
        self._contents.append(contents)
        self._shadows.append(shadows)
        self._digests.append(hash_column(pa.array([point.payload[DIGEST] for point in stored], pa.string())))

    def sort(self) -> None:
        ids = _join(self._ids)
        order = np.argsort(ids, kind="stable")
        self.ids, self.keys, self.contents = ids[order], _join(self._keys)[order], _join(self._contents)[order]
        shadows = [np.zeros((0, 2), np.float32), *self._shadows]
        self.shadows = np.concatenate(shadows)[order] if not self.store.exact else shadows[0]
        # Digests find rows by their content; the first row with one names it.
        digests = _join(self._digests)[order]
        self.digests, first = np.unique(digests, return_index=True)
        self.digest_keys = self.keys[first]
        self.unstored, first = np.unique(_join(self._unstored), return_index=True)
        self.unstored_keys = _join(self._unstored_keys)[first]
        self.times = np.zeros(len(ids), np.int32)
        self.is_changed = np.zeros(len(ids), bool)
        self.doubled: list[Hashes] = []
        self.leftover: list[Hashes] = []
        self.others = 0
        for each in (self._ids, self._keys, self._contents, self._shadows, self._digests):
            each.clear()

    def meet(self, page: list[Point]) -> None:
        """Compare points of the store, each with the row that has its id."""
        ids = _hash_ids([point.id for point in page])
        starts = np.searchsorted(self.ids, ids, "left")
        counts = np.searchsorted(self.ids, ids, "right") - starts
        np.add.at(self.times, starts[counts > 0], 1)
        contents, shadows = self._look_at(page)
        is_same = np.zeros(len(page), bool)
        for nth in range(min(_MOST_ALIKE, int(counts.max(initial=0)))):
            at = np.flatnonzero(counts > nth)
            rows = starts[at] + nth
            same = self.contents[rows] == contents[at]
            if not self.store.exact:
                same &= (np.abs(self.shadows[rows] - shadows[at]) <= _TOLERANCE).all(axis=1)
            is_same[at] |= same
        self.is_changed[starts[(counts > 0) & ~is_same]] = True
        self._meet_strangers([page[i] for i in np.flatnonzero(counts == 0)], ids[counts == 0])

    def difference(self) -> PointDifference:
        firsts = np.ones(len(self.ids), bool)
        firsts[1:] = self.ids[1:] != self.ids[:-1]
        is_missing = ~firsts | (self.times == 0)
        doubled = [*self.doubled, self.keys[firsts & (self.times > 1)]]
        return PointDifference(
            missing=self.keys[is_missing],
            changed=self.keys[self.is_changed],
            doubled=np.unique(_join(doubled)),
            leftover=np.unique(_join(self.leftover)),
            others=self.others,
            without_vector=len(self.unstored),
        )

    def _meet_strangers(self, page: list[Point], ids: Hashes) -> None:
        """Points that no row of the run has the id of."""
        digests = hash_column(pa.array([_text(point.payload.get(DIGEST)) for point in page], pa.string()))
        at, is_copy = _find(self.digests, digests)
        place, is_unstored = _find(self.unstored, ids)
        first, is_later = _find(self.ids, _hash_ids([self._first_window(point) for point in page]))
        self.leftover += [self.unstored_keys[place[is_unstored]], self.keys[first[is_later & ~is_unstored]]]
        is_copy &= ~is_unstored & ~is_later
        self.doubled.append(self.digest_keys[at[is_copy]])
        self.others += int((~is_copy & ~is_unstored & ~is_later).sum())

    def _first_window(self, point: Point) -> str:
        """The id of the first window of a point's item; "" for a point that is no window."""
        key = self.store.shipment.key
        if WINDOW not in key or not set(key) <= point.payload.keys():
            return ""
        item, window = tuple(point.payload[name] for name in key if name != WINDOW), point.payload[WINDOW]
        is_own = isinstance(window, int | float) and self.store.point_id(item, int(window)) == point.id
        return self.store.point_id(item, 0) if is_own else ""

    def _look_at(self, points: list[Point]) -> tuple[Hashes, NDArray[np.float32]]:
        """A hash of each payload, and of the vector where its bits count; and projections of its direction."""
        contents = hash_payloads([self.store.own(point.payload) for point in points])
        dims = self.store.dims
        matrix = np.zeros((len(points), dims), np.float32)
        for i, point in enumerate(points):
            if len(point.vector) == dims:
                matrix[i] = point.vector
        if self.store.exact:
            return mix(contents * np.uint64(31) + hash_inputs(matrix)), np.zeros((0, 2), np.float32)
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        directions = matrix / np.where(lengths > 0, lengths, 1)
        return contents, (directions @ self._axes).astype(np.float32)


def _hash_ids(ids: list[str]) -> Hashes:
    return hash_column(pa.array(ids, pa.string()))


def _find(places: Hashes, hashes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each hash is among sorted ones, and whether it is."""
    at = np.searchsorted(places, hashes)
    is_there = at < len(places)
    is_there[is_there] = places[at[is_there]] == hashes[is_there]
    return at, is_there


def _join(hashes: list[Hashes]) -> Hashes:
    return np.concatenate([np.zeros(0, np.uint64), *hashes])


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
