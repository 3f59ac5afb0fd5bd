"""Objectives of studies."""

from __future__ import annotations

import json
import time
from typing import Any

STUDY: dict[str, Any] = {
    "work": {"call": "tests.support.objectives:quadratic", "trials": 12, "seed": 5, "generation": 4},
    "space": {"x": {"low": -5.0, "high": 5.0}, "n": {"low": 1, "high": 8}, "way": ["a", "b"]},
}


def quadratic(parameters: dict[str, Any], context: Any) -> float:
    return float((parameters["x"] - 1) ** 2 + 0.1 * parameters["n"] + (parameters["way"] == "b"))


def stepwise_slowly(parameters: dict[str, Any], context: Any) -> float:
    """Half a second or so, so that it can be killed in the middle of a study on a fast machine too."""
    time.sleep(0.4)
    return stepwise(parameters, context)


def two_metrics(parameters: dict[str, Any], context: Any) -> dict[str, float]:
    return {"loss": quadratic(parameters, context), "speed": abs(parameters["x"]), "unused": 1.0}


def sometimes_broken(parameters: dict[str, Any], context: Any) -> float:
    if context.number % 4 == 1:
        raise ValueError("no such <b>model</b>")
    return float("nan") if context.number % 4 == 2 else quadratic(parameters, context)


def stepwise(parameters: dict[str, Any], context: Any) -> float:
    """Six steps with a checkpoint each; a killed trial goes on where it was."""
    found = context.checkpoint()
    first = found.step + 1 if found is not None else 0
    value = json.loads(found.read("value.json")) if found is not None else 0.0
    for step in range(first, 6):
        value += quadratic(parameters, context)
        context.report(step, {"value": value / (step + 1)})
        context.keep(step, {"value.json": json.dumps(value).encode()})
    return float(value / 6)


def always_far(parameters: dict[str, Any], context: Any) -> float:
    context.report(0, {"value": 9.0})
    return 9.0


def noisily_broken(parameters: dict[str, Any], context: Any) -> float:
    if context.number == 1:
        raise ValueError("two\nlines \x1b[31mred")
    return 1.0


def always_broken(parameters: dict[str, Any], context: Any) -> float:
    raise ValueError("never")


def one_best(parameters: dict[str, Any], context: Any) -> dict[str, float]:
    """Two metrics that agree, so that one trial beats all others."""
    return {"value": float(parameters["x"]), "speed": 2 * float(parameters["x"])}
