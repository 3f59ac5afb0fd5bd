"""The space of a study: what is a range, what is a choice, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from shardmill.core.errors import SpecError
from shardmill.verbs.tune.space import Choices, NumberRange, parse_space


def test_bounds_say_whether_numbers_are_whole() -> None:
    space = parse_space({"rate": {"low": 1e-5, "high": 1, "log": True}, "layers": {"low": 1, "high": 6, "step": 2}})
    assert space == {"rate": NumberRange(1e-5, 1.0, log=True), "layers": NumberRange(1, 5, step=2)}
    assert [each.kind for each in space.values()] == ["double", "int64"]


def test_a_list_is_a_choice_of_one_type() -> None:
    space = parse_space({"act": ["relu", "gelu"], "bias": [True, False], "size": [1, 2.5]})
    assert space["size"] == Choices((1.0, 2.5))
    assert [each.kind for each in space.values()] == ["string", "bool", "double"]


def test_a_value_is_in_a_range_or_not() -> None:
    stepped = NumberRange(0.0, 0.5, step=0.1)
    assert stepped.holds(0.3)
    assert not stepped.holds(0.25)
    assert not stepped.holds(0.6)
    assert not NumberRange(1, 4).holds(True)
    assert not Choices((1, 2)).holds("1")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "space of the study is empty"),
        ({"x": {"low": 2.0, "high": 1.0}}, "space.x: the range from 2.0 to 1.0 is empty"),
        ({"x": []}, "space.x has no choice"),
        ({"x": 3}, "space.x is neither a range nor a list"),
        ({"x": {"low": 0.0, "high": 1.0, "log": True}}, "space.x: low is 0.0"),
        ({"x": {"low": 1, "high": 4, "step": 0}}, "space.x: step is 0"),
        ({"x": {"low": 0, "high": 0.05, "step": 0.1}}, "space.x: step is 0.1, and the range from 0 to 0.05"),
        ({"x": {"low": 1, "high": 3, "step": 4}}, "at most 2"),
        ({"x": {"low": 1, "high": 4, "step": 0.5}}, "space.x: step is 0.5"),
        ({"x": {"low": float("nan"), "high": 4}}, "space.x: low is not a finite number"),
        ({"x": {"low": 1, "high": float("inf")}}, "space.x: high is not a finite number"),
        ({"x": {"low": 1, "high": 2, "logg": True}}, "space.x has no key 'logg'"),
        ({"x": ["a", 1]}, "space.x has choices of several types"),
        ({"x": ["a", "a"]}, "space.x has a choice twice: 'a'"),
        ({"x": [[8, 16], [8]]}, r"space.x: \[8, 16\] cannot be a choice"),
        ({"x": [{"a": 1}]}, "cannot be a choice"),
        ({"x": {"low": 1, "high": 10**20}}, "space.x: high is beyond 9,223,372,036,854,775,807"),
        ({"x": {"low": 1, "high": 10**400}}, "where whole numbers end"),
        ({"x": [1, 10**20]}, "space.x: a choice is beyond"),
        ({"x": {"low": -1e308, "high": 1e308}}, "space.x: the range from -1e\\+308 to 1e\\+308 is too wide"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_in_one_line(table: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        parse_space(table)
    assert "\n" not in caught.value.message
