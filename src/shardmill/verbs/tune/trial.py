"""One trial of a study: what it tried and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardmill.verbs.tune.space import Value

# A trial that was never begun, as the study's time was over, is skipped; a failed one was set aside with its reason.
COMPLETE, PRUNED, FAILED, SKIPPED = "complete", "pruned", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial that has ended. `values` has one number per metric, `reports` the first metric by step.

    A pruned trial has the last report as its value; a failed or skipped one has none. `ended_at` is when it was
    committed, in seconds since 1970; 0 if that is not known.
    """

    number: int
    state: str
    parameters: Mapping[str, Value]
    values: Sequence[float] = ()
    reports: Mapping[int, float] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    ended_at: float = 0.0
