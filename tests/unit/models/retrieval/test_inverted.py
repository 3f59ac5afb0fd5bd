"""The index of sparse vectors beside the plain dot product."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardmill.models.retrieval.inverted import InvertedIndex, write_inverted
from shardmill.models.sparse.rows import SparseRows

DIMS, ROWS = 50, 400


def make_rows(rows: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    dense = draw.random((rows, DIMS), np.float32) * (draw.random((rows, DIMS)) < 0.1)
    dense[::7] = 0
    return dense


@pytest.fixture(scope="module")
def dense() -> np.ndarray:
    return make_rows(ROWS, 1)


@pytest.fixture(scope="module")
def index(dense: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> InvertedIndex:
    blocks = [SparseRows.of(part) for part in (dense[:1], dense[1:150], dense[150:150], dense[150:])]
    folder = tmp_path_factory.mktemp("index") / "made"
    write_inverted(lambda: ((each.words, each.weights, each.lengths) for each in blocks), DIMS, folder)
    return InvertedIndex(folder)


@pytest.mark.parametrize("k", [1, 5, ROWS])
@pytest.mark.parametrize("limited", [False, True])
def test_the_dot_product(dense: np.ndarray, index: InvertedIndex, k: int, limited: bool) -> None:
    queries = make_rows(9, 2)
    asked = SparseRows.of(queries)
    allowed = np.arange(ROWS) % 3 == 1 if limited else None
    found = index.search([asked.row(i) for i in range(len(asked))], k, None, allowed)
    exact = dense.astype(np.float64) @ queries.T.astype(np.float64)
    for i, (rows, scores) in enumerate(found):
        expected = np.where(True if allowed is None else allowed, exact[:, i], 0)
        order = np.lexsort((np.arange(ROWS), -expected.astype(np.float32)))
        best = order[expected[order] > 0][:k]
        assert rows.tolist() == best.tolist()
        assert scores == pytest.approx(expected[best], rel=1e-6)
    assert not len(found[0][0])  # A query without a word finds nothing.


def test_one_row_of_an_item(dense: np.ndarray, index: InvertedIndex) -> None:
    query = SparseRows.of(make_rows(2, 3)[1:]).row(0)
    items = np.arange(ROWS) // 4
    ((rows, _),) = index.search([query], 30, items)
    assert len({*items[rows]}) == len(rows) == 30


def test_no_rows(tmp_path: Path) -> None:
    write_inverted(list, DIMS, tmp_path / "made")
    empty = InvertedIndex(tmp_path / "made")
    ((rows, _),) = empty.search([(np.array([3], np.int32), np.array([1.0], np.float32))], 3)
    assert (empty.dims, len(rows)) == (DIMS, 0)
