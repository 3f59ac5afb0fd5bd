"""Vectors as bytes and bits: what they stand for, what is cut off, and what stands for no vector."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shardmill.core.errors import SpecError
from shardmill.core.quantised import BYTE_TYPES, QUANTISED, Quantiser, Ranges

NUMBERS = st.floats(-4, 4, width=32)
MATRIX = arrays.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 21)), elements=NUMBERS)


@pytest.mark.parametrize("dtype", BYTE_TYPES)
@given(vectors=MATRIX)
def test_a_byte_is_half_a_step_off_at_most(dtype: str, vectors: np.ndarray) -> None:
    ranges = Ranges.read(Ranges.of(vectors).to_json())
    quantiser = Quantiser(dtype, vectors.shape[1], ranges)
    codes = quantiser.encode(vectors)
    assert codes.dtype == dtype
    assert codes.shape == vectors.shape
    assert not (codes == quantiser.missing).any()
    step = (ranges.highest - ranges.lowest) / 254
    assert (np.abs(quantiser.decode(codes) - vectors) <= step * 0.51 + 1e-5).all()


@pytest.mark.parametrize("dtype", BYTE_TYPES)
def test_what_is_out_of_range_is_the_nearest_number_that_is_in_it(dtype: str) -> None:
    quantiser = Quantiser(dtype, 2, Ranges(np.full(2, -1, np.float32), np.full(2, 1, np.float32)))
    found = quantiser.decode(quantiser.encode(np.array([[5, -5]], np.float32)))
    np.testing.assert_allclose(found, [[1, -1]], atol=1e-6)


@given(vectors=MATRIX)
def test_a_bit_is_the_sign(vectors: np.ndarray) -> None:
    quantiser = Quantiser("binary", vectors.shape[1])
    codes = quantiser.encode(vectors)
    assert codes.shape == (len(vectors), quantiser.width)
    there = (vectors > 0).any(axis=1)
    assert np.array_equal(quantiser.decode(codes)[there], np.where(vectors[there] > 0, 1, -1))


@pytest.mark.parametrize("dtype", QUANTISED)
def test_a_column_tells_what_its_bytes_are(dtype: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 12)).astype(np.float32)
    quantiser = Quantiser(dtype, 12, Ranges.of(vectors) if dtype in BYTE_TYPES else None)
    field = pa.field("embedding", pa.binary(quantiser.width), metadata=quantiser.describe())
    found = Quantiser.of_field(field)
    assert found is not None
    assert (found.dtype, found.dims) == (dtype, 12)
    codes = quantiser.encode(vectors)
    # The ranges have six digits.
    np.testing.assert_allclose(found.decode(codes), quantiser.decode(codes), atol=1e-4)
    assert np.array_equal(quantiser.read(codes[2].tobytes())[0], codes[2])
    missing = np.full((1, quantiser.width), quantiser.missing, quantiser.stored)
    assert np.isnan(quantiser.decode(missing)).all()
    assert Quantiser.of_field(pa.field("embedding", pa.binary(12))) is None
    assert Quantiser.of_field(pa.field("embedding", pa.list_(pa.float32(), 12))) is None


def test_bytes_need_ranges() -> None:
    with pytest.raises(SpecError, match="has no ranges"):
        Quantiser("int8", 2).encode(np.zeros((1, 2), np.float32))
