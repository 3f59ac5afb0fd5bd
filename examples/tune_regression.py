"""Tune a small regression: rate, degree and weight decay of gradient descent, with pruning and checkpoints.

python examples/tune_regression.py [RUN]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import shardmill

STUDY = {
    "work": {
        "trials": 40,
        "seed": 1,
        "metrics": {"loss": "minimize"},
        "pruner": {"name": "median", "n_startup_trials": 8},
        "start": [{"rate": 0.01, "degree": 1, "decay": 1e-4, "momentum": 0.0}],
    },
    "space": {
        "rate": {"low": 1e-3, "high": 0.5, "log": True},
        "degree": {"low": 1, "high": 9},
        "decay": {"low": 1e-6, "high": 1.0, "log": True},
        "momentum": [0.0, 0.9],
    },
    "execution": {"device": "cpu"},
}


def objective(parameters: dict[str, Any], context: Any) -> dict[str, float]:
    """Fit a noisy sine with a polynomial, and return the error on points that were not fitted."""
    draw = np.random.default_rng(7)
    x = draw.uniform(-1, 1, 120)
    y = np.sin(3 * x) + draw.normal(0, 0.1, 120)
    powers = np.stack([x**n for n in range(parameters["degree"] + 1)], axis=1)
    weights, speed, first = np.zeros(powers.shape[1]), np.zeros(powers.shape[1]), 0
    if (before := context.checkpoint()) is not None:
        state = json.loads(before.read("state.json"))
        weights, speed, first = np.array(state["weights"]), np.array(state["speed"]), before.step
    loss = float("inf")
    for step in range(first + 1, 301):
        error = powers[:80] @ weights - y[:80]
        slope = powers[:80].T @ error / 80 + parameters["decay"] * weights
        speed = parameters["momentum"] * speed - parameters["rate"] * slope
        weights = weights + speed
        if step % 50 == 0:
            loss = float(np.mean((powers[80:] @ weights - y[80:]) ** 2))
            context.report(step, {"loss": loss})
        if step % 150 == 0:
            state = {"weights": weights.tolist(), "speed": speed.tolist()}
            context.keep(step, {"state.json": json.dumps(state).encode()})
    return {"loss": loss}


def main(out: str) -> None:
    run = shardmill.tune(STUDY, call=objective, out=out)
    study = run.study()
    states = [trial.state for trial in study.trials]
    print(f"{len(states)} trials: {states.count('complete')} complete, {states.count('pruned')} pruned")
    best = study.best[0]
    print(f"best: trial {best.number}, loss {best.values[0]:.4f}, {dict(best.parameters)}")
    print(f"matters: {study.importances}")
    print(f"page: {run.report()}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/regression")
