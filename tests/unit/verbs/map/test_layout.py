"""A plane for vectors: exact similarities, places that depend on one vector alone, and the arrays of a fitted map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.errors import CorruptState, SourceError, UsageError
from tests.support.libraries import needed

needed("numba")

from shardmill.verbs.map.layout.anchors import Anchors, search_axes  # noqa: E402
from shardmill.verbs.map.layout.fitting import fit, fit_plane  # noqa: E402
from shardmill.verbs.map.layout.saved import find_fit, load_anchors, read_fit, save_fit  # noqa: E402
from shardmill.verbs.map.layout.whole import LENGTH, as_matrix, project, to_whole  # noqa: E402


def _vectors(count: int, dims: int, seed: int = 0) -> np.ndarray:
    return to_whole(np.random.default_rng(seed).normal(size=(count, dims)).astype(np.float32))[0]


def _anchors(dims: int = 24, count: int = 200) -> Anchors:
    vectors = _vectors(count, dims)
    return Anchors(vectors, fit_plane(vectors), search_axes(vectors), 1.577, 0.895, seed=7)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float16(), 2)),
        pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float64())),
        pa.array(["[1, 2]", None, "[3.0,4.0]"]),
    ],
)
def test_vectors_of_any_column_become_a_matrix(column: pa.Array) -> None:
    found = as_matrix(column)
    assert found.dtype == np.float32
    assert np.array_equal(found, [[1, 2], [np.nan, np.nan], [3, 4]], equal_nan=True)
    assert np.array_equal(as_matrix(column.slice(2)), [[3, 4]])


def test_vectors_of_two_widths_are_refused_in_one_line() -> None:
    with pytest.raises(SourceError, match="different widths: 2, 3") as error:
        as_matrix(pa.array([[1.0, 2.0], [1.0, 2.0, 3.0]]))
    assert "--vector" in error.value.hint
    with pytest.raises(SourceError, match="different widths: 2, 4"):
        as_matrix(pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), dims=4)


def test_what_is_no_vector_is_refused_in_one_line() -> None:
    with pytest.raises(SourceError, match="'a word' is not a vector"):
        as_matrix(pa.array(["a word"]))


def test_a_vector_without_a_direction_is_not_usable() -> None:
    rows = np.array([[3, 4], [0, 0], [np.nan, 1], [np.inf, 1], [3e-38, 4e-38], [3e37, 4e37]], np.float32)
    whole, usable = to_whole(rows)
    assert usable.tolist() == [True, False, False, False, True, True]
    assert whole[usable].tolist() == [[2340, 3120]] * 3
    assert not whole[~usable].any()


@pytest.mark.parametrize("dims", [2, 384, 1024])
def test_products_are_exact_in_any_order(dims: int) -> None:
    one, other = _vectors(40, dims), _vectors(30, dims, seed=1)
    exact = one.astype(np.int64) @ other.astype(np.int64).T
    shuffled = np.random.default_rng(2).permutation(dims)
    fast = one[:, shuffled].astype(np.float32) @ other[:, shuffled].astype(np.float32).T
    assert np.array_equal(fast, exact)
    # The longest products there are: of a vector with itself.
    assert np.abs(np.einsum("ij,ij->i", one.astype(np.int64), one.astype(np.int64))).max() < 1 << 24
    assert abs(np.sqrt(float(exact.max())) / LENGTH) < 1.1


@pytest.mark.parametrize("dims", [24, 512])
def test_a_place_depends_on_the_map_and_that_vector_alone(dims: int) -> None:
    anchors = _anchors(dims)
    others = _vectors(70, dims, seed=3)
    together = anchors.place(others)
    apart = [anchors.place(others[i : i + 1]) for i in range(len(others))]
    assert np.array_equal(together.places, np.concatenate([each.places for each in apart]))
    assert np.array_equal(together.distances, np.concatenate([each.distances for each in apart]))
    assert np.array_equal(together.places[::-1], anchors.place(others[::-1].copy()).places)
    assert np.isfinite(together.places).all()


def test_a_vector_that_was_fitted_keeps_its_place() -> None:
    anchors = _anchors()
    assert np.array_equal(anchors.place(anchors.vectors).places, anchors.places)


def test_another_seed_repels_by_other_anchors() -> None:
    anchors, others = _anchors(), _vectors(50, 24, seed=3)
    again = Anchors(anchors.vectors, anchors.places, anchors.axes, anchors.a, anchors.b, seed=8)
    assert not np.array_equal(anchors.place(others).places, again.place(others).places)


def test_the_nearest_anchors_are_found_as_by_brute_force() -> None:
    anchors, others = _anchors(count=300), _vectors(40, 24, seed=3)
    nearest, distances = anchors.nearest(others, 5)
    exact = others.astype(np.float64), anchors.vectors.astype(np.float64)
    cosines = (exact[0] @ exact[1].T) / np.outer(*(np.linalg.norm(each, axis=1) for each in exact))
    due = np.argsort(-cosines, axis=1)[:, :5]
    # The search goes by products of nearly equal lengths.
    assert np.mean([len(np.intersect1d(a, b)) for a, b in zip(nearest, due, strict=True)]) > 4.9
    assert np.allclose(1 - distances[:, 0], cosines.max(axis=1))


def test_axes_keep_what_a_search_needs() -> None:
    vectors = _vectors(100, 512)
    axes = search_axes(vectors)
    assert axes.shape == (256, 512)
    assert np.abs(project(vectors, axes)).max() < LENGTH * 1.01


@pytest.mark.parametrize("count", [1, 2, 19])
def test_few_vectors_are_placed_on_the_plane_of_largest_variance(count: int) -> None:
    vectors = _vectors(count, 8)
    made = fit(vectors, "umap", seed=1)
    assert made.places.shape == (count, 2)
    assert np.isfinite(made.places).all()
    assert np.array_equal(made.place(vectors).places, made.places)
    assert np.isfinite(made.place(_vectors(4, 8, seed=9)).places).all()


def test_a_fitted_map_is_read_back_as_it_was(tmp_path: Path) -> None:
    place, anchors = str(tmp_path / "fit"), _anchors()
    assert find_fit(place) is None
    with pytest.raises(UsageError, match="no fitted map"):
        read_fit(place)
    record = save_fit(place, anchors, "umap", 500, 200, {"umap-learn": "1"})
    again = load_anchors(place)
    assert (record.rows, record.sampled, record.anchors, record.dims) == (500, 200, 200, 24)
    assert all(np.array_equal(getattr(again, name), getattr(anchors, name)) for name in ("vectors", "places", "axes"))
    assert (again.a, again.b, again.seed) == (anchors.a, anchors.b, anchors.seed)
    # Another who fitted at the same time changes nothing.
    assert save_fit(place, _anchors(count=100), "umap", 500, 100, {}) == record


def test_a_damaged_map_is_told_in_one_line(tmp_path: Path) -> None:
    place = str(tmp_path / "fit")
    record = save_fit(place, _anchors(), "umap", 500, 200, {})
    (tmp_path / "fit" / f"places-{record.digest}.npy").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(CorruptState, match="is damaged"):
        load_anchors(place)
    (tmp_path / "fit" / "fit.json").write_text("{")
    with pytest.raises(CorruptState, match="is damaged"):
        load_anchors(place)
