"""Fit a map: a place for each of some vectors, such that those that are alike are near one another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import MissingExtra
from shardmill.core.extras import missing_package
from shardmill.verbs.map.layout.anchors import NEIGHBOURS, Anchors, search_axes
from shardmill.verbs.map.layout.whole import LENGTH, Whole
from shardmill.verbs.map.params import Method

# With fewer different vectors, neighbours say little, and the plane of largest variance is the map.
FEWEST = 20
# UMAP's curve for its usual min_dist of 0.1 and spread of 1; points of a PaCMAP settle by it too.
_A, _B = 1.576943460405378, 0.8950608781227859
_SPREAD = 10.0

OnProgress = Callable[[float, str], None]


def fit(vectors: Whole, method: Method, seed: int, on_progress: OnProgress = lambda share, what: None) -> Anchors:
    """Place vectors, all different, on a plane. The same vectors and seed give the same places."""
    plane = fit_plane(vectors)
    anchors = Anchors(vectors, plane, search_axes(vectors), _A, _B, seed)
    if len(vectors) < FEWEST:
        return anchors
    on_progress(0.05, f"neighbours of {len(vectors):,} anchors")
    nearest, distances = anchors.nearest(
        vectors, NEIGHBOURS, lambda done: on_progress(0.05 + 0.35 * done / len(vectors), "neighbours of anchors")
    )
    on_progress(0.4, f"{method} of {len(vectors):,} anchors")
    made = (_fit_umap if method == "umap" else _fit_pacmap)(vectors, plane, nearest, distances, seed)
    on_progress(1.0, f"{len(vectors):,} anchors")
    return Anchors(vectors, made, anchors.axes, _A, _B, seed)


def versions(method: Method) -> dict[str, str]:
    """The versions of the libraries that the places depend on."""
    names = {"umap": "umap-learn", "pacmap": "pacmap"}
    try:
        return {name: version(name) for name in (names[method], "numba")}
    except ModuleNotFoundError as error:
        raise _missing(method) from error


def fit_plane(vectors: Whole) -> NDArray[np.float32]:
    """The coordinates along the two directions of largest variance (PCA), ten units wide."""
    centre, directions = find_plane(vectors)
    return spread_out(on_plane(vectors, centre, directions))


def find_plane(vectors: Whole) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean of vectors, and the two directions along which they differ most."""
    centre = vectors.mean(axis=0, dtype=np.float64)
    products = np.zeros((vectors.shape[1], vectors.shape[1]))
    for start in range(0, len(vectors), 4096):
        part = (vectors[start : start + 4096] - centre) / LENGTH
        products += part.T @ part
    _, directions = np.linalg.eigh(products)
    top = directions[:, ::-1][:, :2]
    if top.shape[1] < 2:
        top = np.pad(top, ((0, 0), (0, 1)))
    # A direction and its opposite are equally good; the sign of its largest part decides.
    signs = np.sign(top[np.abs(top).argmax(axis=0), [0, 1]])
    return centre, top * np.where(signs == 0, 1.0, signs)


def on_plane(vectors: Whole, centre: NDArray[np.float64], directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coordinates of vectors on a plane."""
    coordinates: NDArray[np.float64] = ((vectors - centre) / LENGTH) @ directions
    return coordinates


def spread_out(coordinates: NDArray[np.float64]) -> NDArray[np.float32]:
    """Coordinates ten units wide, rounded so that the last bits of a decomposition do not matter."""
    widest = float(np.abs(coordinates).max(initial=0.0)) or 1.0
    return np.asarray(np.round(coordinates * (_SPREAD / widest), 3), np.float32)


def _fit_umap(
    vectors: Whole, plane: NDArray[np.float32], nearest: NDArray[np.int32], distances: NDArray[np.float64], seed: int
) -> NDArray[np.float32]:
    try:
        from umap import UMAP
    except ImportError as error:
        raise _missing("umap") from error
    # A random state keeps UMAP to one thread: several would add up in another order each time.
    model = UMAP(
        n_neighbors=nearest.shape[1],
        random_state=seed % (1 << 32),
        n_jobs=1,
        init=plane,
        precomputed_knn=(nearest, distances.astype(np.float32)),
    )
    with warnings.catch_warnings():
        # It warns that it cannot place others; that is done here.
        warnings.simplefilter("ignore")
        model.fit(vectors.astype(np.float32))
    return _centred(model.embedding_)


def _fit_pacmap(
    vectors: Whole, plane: NDArray[np.float32], nearest: NDArray[np.int32], distances: NDArray[np.float64], seed: int
) -> NDArray[np.float32]:
    try:
        from pacmap import PaCMAP
    except ImportError as error:
        raise _missing("pacmap") from error
    model = PaCMAP(n_components=2, n_neighbors=min(10, nearest.shape[1] - 1), random_state=seed % (1 << 31))
    with warnings.catch_warnings():
        # It warns that a random state makes it slower.
        warnings.simplefilter("ignore")
        made = model.fit_transform(vectors.astype(np.float32) / np.float32(LENGTH), init=plane)
    return _centred(made)


def _centred(places: Any) -> NDArray[np.float32]:
    """Places around the origin; one that a library could not place lies there."""
    found = np.nan_to_num(np.asarray(places, np.float32))
    return np.asarray(found - (found.max(axis=0) + found.min(axis=0)) / 2, np.float32)


def _missing(method: str) -> Exception:
    if method == "pacmap":
        return MissingExtra("pacmap is not installed.", hint="Install it with: pip install pacmap")
    return missing_package("umap-learn")
