"""Objectives of studies."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

STUDY: dict[str, Any] = {
    "work": {"call": "tests.support.objectives:quadratic", "trials": 12, "seed": 5, "generation": 4},
    "space": {"x": {"low": -5.0, "high": 5.0}, "n": {"low": 1, "high": 8}, "way": ["a", "b"]},
}


def quadratic(parameters: dict[str, Any], context: Any) -> float:
    return float((parameters["x"] - 1) ** 2 + 0.1 * parameters["n"] + (parameters["way"] == "b"))


def two_metrics(parameters: dict[str, Any], context: Any) -> dict[str, float]:
    return {"loss": quadratic(parameters, context), "speed": abs(parameters["x"]), "unused": 1.0}


def sometimes_broken(parameters: dict[str, Any], context: Any) -> float:
    if context.number % 4 == 1:
        raise ValueError("no such <b>model</b>")
    return float("nan") if context.number % 4 == 2 else quadratic(parameters, context)


def stepwise(parameters: dict[str, Any], context: Any) -> float:
    """Ten steps with a checkpoint each; a killed trial goes on where it was."""
    found = context.checkpoint()
    first = found.step + 1 if found is not None else 0
    value = json.loads(found.read("value.json")) if found is not None else 0.0
    for step in range(first, 10):
        value += quadratic(parameters, context)
        context.report(step, {"value": value / (step + 1)})
        context.keep(step, {"value.json": json.dumps(value).encode()})
        _die_sometimes(context.number, step)
    return float(value / 10)


def _die_sometimes(number: int, step: int) -> None:
    """Kill this worker in the middle of some trials, once each, if a folder for the marks is given."""
    marks = os.environ.get("SHARDMILL_TEST_DEATHS")
    if marks and number % 5 == 2 and step == 4:
        mark = Path(marks) / str(number)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def slow(parameters: dict[str, Any], context: Any) -> float:
    time.sleep(0.05)
    return quadratic(parameters, context)
