"""What bounds tell of a condition."""

from __future__ import annotations

import pytest

from shardmill.core.where.bounds import Bounds, can_hold
from shardmill.core.where.parsing import parse_condition

_NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "least", "most", "possible"),
    [
        ("a > 5", 1, 5, False),
        ("a >= 5", 1, 5, True),
        ("NOT a <= 5", 1, 5, False),
        ("a = 7 OR a IS NULL", 1, 5, False),
        ("a IN (0, 6)", 1, 5, False),
        ("a BETWEEN 6 AND 9", 1, 5, False),
        ("a != 3", 3, 3, True),
        ("a < 5 AND b = 1", 6, 9, False),
        ("b = 1", 6, 9, True),
        ("a = null", 1, 5, False),
    ],
)
def test_whole_numbers_are_judged(text: str, least: int, most: int, possible: bool) -> None:
    bounds = {"a": Bounds(least, most, nulls=False, others=False)}
    assert can_hold(parse_condition(text), bounds) is possible


def test_nan_is_between_no_bounds() -> None:
    bounds = {"a": Bounds(1.0, 5.0, nulls=False, others=True)}
    assert can_hold(parse_condition("NOT a <= 5"), bounds)
    assert not can_hold(parse_condition("a > 5"), bounds)
    assert can_hold(parse_condition("a > 5"), {"a": Bounds(_NAN, _NAN, nulls=False, others=True)})


def test_bounds_of_texts_need_not_be_values() -> None:
    bounds = {"a": Bounds("ab", "ac", nulls=False, others=True)}
    assert can_hold(parse_condition("a != 'ab'"), bounds)
    assert can_hold(parse_condition("a = 'abc'"), bounds)
    assert can_hold(parse_condition("a IS NULL"), bounds)
    assert not can_hold(parse_condition("a = 'b'"), bounds)
