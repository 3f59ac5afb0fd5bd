"""When two results agree, by the precision that they were computed in."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.models.golden import agree, lowest_cosine, lowest_mean, lowest_of_many, lowest_rounded, reach_past_window


def _turned(cosine: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return np.array([[1.0, 0.0]], np.float32), np.array([[cosine, np.sqrt(1 - cosine**2)]], np.float32)


@pytest.mark.parametrize(
    ("precision", "agrees", "differs"),
    [("float32", 0.999999, 0.9999), ("float16", 0.9999, 0.9997), ("bfloat16", 0.9993, 0.998), ("", 0.9993, 0.998)],
)
def test_each_precision_has_its_gate(precision: str, agrees: float, differs: float) -> None:
    """A window half as wide once passed in float16 with a cosine of 0.9997."""
    assert agree(*_turned(agrees), precision)
    assert not agree(*_turned(differs), precision)
    assert lowest_cosine("float32") > lowest_cosine("float16") > lowest_cosine("bfloat16") == lowest_cosine("")
    assert [lowest_of_many(name) == lowest_cosine(name) for name in ("float16", "bfloat16", "")] == [True] * 3
    assert lowest_cosine("float32") > lowest_of_many("float32") > lowest_of_many("float16")


def test_a_precision_that_is_asked_for_has_a_gate_for_its_mean() -> None:
    assert lowest_rounded("int8") < lowest_mean("int8") < lowest_cosine("bfloat16")
    assert lowest_rounded("mine") == lowest_mean("mine") == lowest_cosine("mine")
    # Quantised files have a limit of their own.
    assert lowest_rounded("int8") < lowest_cosine("int8")


def test_what_is_not_finite_never_agrees() -> None:
    assert not agree(np.full((1, 2), np.nan, np.float32), np.ones((1, 2), np.float32), "bfloat16")


@pytest.mark.parametrize(
    ("window", "limit", "longest"),
    [(0, None, 30), (8, None, 30), (128, 8192, 257), (128, 200, 200), (4096, None, 1024), (4096, 512, 512)],
)
def test_the_trial_reaches_past_the_window(window: int, limit: int | None, longest: int) -> None:
    rows = [np.arange(n, dtype=np.int32) for n in (3, 30, 12)]
    tried = reach_past_window(rows, window, limit)
    assert tried[:3] == rows
    assert max(map(len, tried)) == longest
