"""Search among bytes and bits beside search among the vectors that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from shardmill.core.quantised import BYTE_TYPES, QUANTISED, Quantiser, Ranges
from shardmill.models.retrieval import codes as searched
from shardmill.models.retrieval.codes import nearest_codes
from shardmill.models.retrieval.vectors import nearest

DIMS, ROWS, K = 128, 3_000, 10


def _made(dtype: str, dims: int = DIMS) -> tuple[Quantiser, np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(7)
    centres = draw.normal(size=(60, dims))
    vectors = (centres[draw.integers(60, size=ROWS)] + draw.normal(size=(ROWS, dims))).astype(np.float32)
    queries = (vectors[:20] + 0.3 * draw.normal(size=(20, dims))).astype(np.float32)
    quantiser = Quantiser(dtype, dims, Ranges.of(vectors) if dtype in BYTE_TYPES else None)
    return quantiser, vectors, quantiser.encode(vectors), queries


@pytest.mark.parametrize("dtype", BYTE_TYPES)
def test_bytes_are_searched_as_what_they_stand_for(dtype: str) -> None:
    quantiser, vectors, codes, queries = _made(dtype)
    allowed = np.random.default_rng(1).random(ROWS) < 0.3
    for some in (None, allowed):
        found = nearest_codes(codes, quantiser, queries, K, allowed=some)
        expected = nearest(quantiser.decode(codes), queries, K, allowed=some)
        for (rows, scores), (wanted, close) in zip(found, expected, strict=True):
            assert np.array_equal(rows, wanted)
            np.testing.assert_allclose(scores, close, atol=1e-5)
    exact = nearest(vectors, queries, K)
    found = nearest_codes(codes, quantiser, queries, K)
    assert np.mean([len(np.intersect1d(a[0], b[0])) for a, b in zip(found, exact, strict=True)]) > 0.97 * K


@pytest.mark.parametrize("dims", [DIMS, 100])
def test_bits_are_ranked_again_by_the_numbers_of_the_query(dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quantiser, _, codes, queries = _made("binary", dims)
    expected = nearest(quantiser.decode(codes), queries, K)
    found = nearest_codes(codes, quantiser, queries, K)
    shared = [len(np.intersect1d(a[0], b[0])) for a, b in zip(found, expected, strict=True)]
    assert np.mean(shared) > 0.95 * K
    monkeypatch.delattr(searched.np, "bitwise_count", raising=False)
    again = nearest_codes(codes, quantiser, queries, K)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("dtype", QUANTISED)
def test_rows_without_a_vector_are_left_out(dtype: str) -> None:
    quantiser, _, codes, queries = _made(dtype)
    codes = codes[:8].copy()
    codes[3] = quantiser.missing
    items = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    for rows, _ in nearest_codes(codes, quantiser, queries, K):
        assert sorted(rows) == [0, 1, 2, 4, 5, 6, 7]
    for rows, _ in nearest_codes(codes, quantiser, queries, K, items):
        assert sorted(items[rows]) == [0, 1, 2, 3]
