"""The learning rate over the steps of a run."""

from __future__ import annotations

import math


def rate_at(step: int, steps: int, *, warmup: float, schedule: str) -> float:
    """The factor of the learning rate at a step, from 0 on: it rises during `warmup`, then falls by the `schedule`.

    >>> [round(rate_at(step, 10, warmup=0.2, schedule="linear"), 3) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.125]
    """
    rising = round(steps * warmup)
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    if schedule == "linear":
        return 1 - done
    return (1 + math.cos(math.pi * done)) / 2 if schedule == "cosine" else 1.0
