"""Studies that run in this process, and what their trials are compared by."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from shardmill import run as runs
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run
from shardmill.testing import InProcessEngine
from shardmill.verbs.tune.study_file import read_study_file
from tests.support.objectives import STUDY


def study_spec(call: str = "quadratic", execution: dict[str, Any] | None = None, **work: Any) -> Spec:
    study = copy.deepcopy(STUDY)
    study["work"] |= {"call": f"tests.support.objectives:{call}", **work}
    made, own = read_study_file(study, {})
    return make_spec(made, {**own, "device": "cpu", **(execution or {})})


def run_study(out: Path | str, call: str = "quadratic", workers: int = 1, **work: Any) -> Run:
    return runs.start(study_spec(call, **work), out, engine=InProcessEngine(workers))


def outcomes(run: Run) -> list[tuple[Any, ...]]:
    """What must not depend on who ran the trials, or how often they were killed."""
    trials = run.study().trials
    return [(t.number, t.state, dict(t.parameters), tuple(t.values), dict(t.reports)) for t in trials]
