"""How far a map can be trusted: how many true neighbours it keeps, compared with PCA and with chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from shardmill.core.random import draw_fine, make_key
from shardmill.verbs.map.layout.whole import Whole
from shardmill.verbs.map.page_data import MapFigures, MapQuality
from shardmill.verbs.map.vectors import VectorBatch

_ROWS, _K = 2_000, 15
# With fewer points the figures say nothing.
_FEWEST = 50
# A map must keep this many more of the true neighbours, of all, than the plane of PCA.
_BETTER = 0.02

ReadAll = Callable[[str], Iterator[VectorBatch]]


def measure_quality(
    read: ReadAll, places: NDArray[np.float32], plane: NDArray[np.float32], seed: int
) -> MapQuality | None:
    """Measure a map and the plane of PCA; `read` goes through all vectors again, with a title for its progress."""
    count = len(places)
    if count < _FEWEST:
        return None
    k = min(_K, count // 4)
    draws = draw_fine(np.arange(count, dtype=np.uint64), make_key(seed, "map quality"))[0]
    queries = np.sort(np.argsort(draws, kind="stable")[:_ROWS])
    layouts = [_neighbours(each, queries, k) for each in (places, plane)]
    wanted = np.unique(np.concatenate([queries, *(each.ravel() for each in layouts)]))
    held = _gather(read("figures: their neighbours"), wanted)
    asked = held[np.searchsorted(wanted, queries)]
    scores = [_scores(asked, held[np.searchsorted(wanted, each)]) for each in layouts]
    best, ranks = _rank(read("figures: against all"), asked, queries, np.concatenate(scores, axis=1), k)
    on_map, on_plane = (
        _figures(layout, ranks[:, i * k : (i + 1) * k], best, count) for i, layout in enumerate(layouts)
    )
    return judge(len(queries), k, on_map, on_plane, _chance(count, k))


def _neighbours(places: NDArray[np.float32], queries: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """The nearest points of some points on a plane, without themselves."""
    from scipy.spatial import cKDTree

    _, found = cKDTree(places).query(places[queries], k + 1)
    # Of many points at one place, the query itself may not be among the nearest.
    at = np.where(found == queries[:, None], 1, 0)
    at[:, -1] |= ~at.any(axis=1)
    return np.asarray(found[at == 0].reshape(len(queries), k), np.int64)


def _points(batches: Iterator[VectorBatch]) -> Iterator[tuple[int, Whole]]:
    """The vectors of the points, with the number of the first of each batch."""
    first = 0
    for batch in batches:
        own = batch.whole if batch.usable.all() else batch.whole[batch.usable]
        if len(own):
            yield first, own
        first += len(own)


def _gather(batches: Iterator[VectorBatch], wanted: NDArray[np.int64]) -> Whole:
    """The vectors of some points."""
    parts = []
    for first, own in _points(batches):
        low, high = np.searchsorted(wanted, [first, first + len(own)])
        parts.append(own[wanted[low:high] - first])
    return np.concatenate(parts)


def _scores(asked: Whole, others: Whole) -> NDArray[np.float32]:
    """The products of each vector with each of its others, as the matrix product of `_rank` gives them: exact."""
    made = np.empty(others.shape[:2], np.float32)
    for i in range(len(asked)):
        made[i] = others[i].astype(np.int64) @ asked[i].astype(np.int64)
    return made


def _rank(
    batches: Iterator[VectorBatch],
    asked: Whole,
    queries: NDArray[np.int64],
    scores: NDArray[np.float32],
    k: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The true neighbours of the queries, and the rank among all points of each given score, from 1."""
    from shardmill.verbs.map.kernels import count_nearer

    order = np.argsort(-scores, axis=1, kind="stable")
    thresholds = np.take_along_axis(scores, order, 1)
    counts = np.zeros(scores.shape, np.int64)
    best, best_scores = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32)
    left = asked.astype(np.float32)
    for first, own in _points(batches):
        for start in range(0, len(own), 4096):
            part = own[start : start + 4096].astype(np.float32)
            count_nearer(left @ part.T, thresholds, first + start, queries, counts, best, best_scores)
    ranks = np.empty(scores.shape, np.int64)
    np.put_along_axis(ranks, order, np.cumsum(counts, axis=1) + 1, 1)
    return best, ranks


def _figures(found: NDArray[np.int64], ranks: NDArray[np.int64], best: NDArray[np.int64], count: int) -> MapFigures:
    """Trustworthiness (Venna and Kaski, 2001) and the share of true neighbours that were kept."""
    k = found.shape[1]
    beyond = np.maximum(ranks - k, 0).sum()
    trust = 1 - 2 / (len(found) * k * (2 * count - 3 * k - 1)) * beyond
    kept = np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, best, strict=True)]) / k
    return MapFigures(round(float(trust), 4), round(float(kept), 4))


def _chance(count: int, k: int) -> MapFigures:
    """What points thrown at random would have, by arithmetic."""
    beyond = (count - 1 - k) * (count - k) / (2 * (count - 1))
    return MapFigures(round(1 - 2 / (2 * count - 3 * k - 1) * beyond, 4), round(k / (count - 1), 4))


def judge(rows: int, k: int, on_map: MapFigures, on_plane: MapFigures, chance: MapFigures) -> MapQuality:
    """The figures with the sentence that is printed beside them."""
    warns = on_map.kept <= on_plane.kept + _BETTER and on_map.trust <= on_plane.trust + _BETTER
    shares = f"{on_map.kept:.0%} are its neighbours here (PCA: {on_plane.kept:.0%})"
    said = f"Of the {k} true neighbours of a point, {shares}."
    if warns:
        said = f"The picture means little: it is no better than PCA. {said}"
    elif on_map.kept <= on_plane.kept + _BETTER:
        said = f"{said} Those it has are less far off: trustworthiness {on_map.trust:.2f} (PCA: {on_plane.trust:.2f})."
    return MapQuality(rows, k, on_map, on_plane, chance, said, warns)
