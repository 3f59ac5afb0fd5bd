"""A value is in the result as the function gave it, or its row is set aside with the reason."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.verbs.apply.results import take_back

POINT = pa.struct([("x", pa.int64())])


def fit(values: list[Any], kind: pa.DataType) -> list[Any]:
    rows, _ = take_back([{"a": value} for value in values], len(values), pa.schema([("a", kind)]), "dicts", "f.py:f")
    return list(rows.column("a").to_pylist())


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        (1.5, pa.int64(), "1.5"),
        (np.float32(1.5), pa.int8(), "1.5"),
        (Decimal("1.5"), pa.int64(), "data loss"),
        ([1, 2.5], pa.list_(pa.int64()), "2.5"),
        (np.array([2.5]), pa.list_(pa.int64()), "2.5"),
        ({"x": 2.5}, POINT, "2.5"),
        ({"x": 1, "y": 2}, POINT, "the fields y more"),
        ([{"x": 1, "y": 2}], pa.list_(POINT), "the fields y more"),
        ("abc", pa.list_(pa.string()), "a text is not a list"),
        (dt.datetime(2024, 1, 2, 3), pa.date32(), "a time of day"),
        (dt.datetime(2024, 1, 2, 3, 4, 5, 6), pa.timestamp("s"), "lose data"),
        (2**63, pa.int64(), "too large"),
        ("1", pa.int64(), "'1'"),
    ],
)
def test_a_value_that_would_lose_a_part_is_refused_by_its_column(value: Any, kind: pa.DataType, why: str) -> None:
    with pytest.raises(ValueError, match="a value of the column 'a' is not ") as error:
        fit([value], kind)
    assert "f.py:f" in str(error.value)
    assert why in str(error.value)
    assert "columns=" in str(error.value)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 3], pa.int64()),
        ([1.0, 2], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([2**64 - 1], pa.uint64()),
        ([[1, 2], None, []], pa.list_(pa.int64())),
        ([["a"], []], pa.list_(pa.string())),
        ([{"x": 1}, {"x": None}, None], POINT),
        ([dt.date(2024, 1, 2)], pa.date32()),
        ([Decimal("1.25"), Decimal("2")], pa.decimal128(5, 2)),
    ],
)
def test_a_value_that_fits_stays_as_it_is(values: list[Any], kind: pa.DataType) -> None:
    assert fit(values, kind) == values


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([{"x": 1, "y": 2}]), POINT),
        (pa.array([dt.datetime(2024, 1, 2, 3)]), pa.date32()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([2]), pa.bool_()),
    ],
)
def test_the_same_holds_for_a_frame(column: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match="a value of the column 'a' is not "):
        take_back(pa.table({"a": column}), 1, pa.schema([("a", kind)]), "table", "f.py:f")
