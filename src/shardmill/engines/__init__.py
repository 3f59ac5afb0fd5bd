"""Engines place workers: here, on other hosts, in a queue, in a cluster. What a worker does is the same everywhere."""

from __future__ import annotations

import importlib
from typing import Any, cast

from shardmill.engines.base import Engine
from shardmill.errors import SpecError, nearest
from shardmill.plan import Plan
from shardmill.spec import Execution

LOCAL = "local"
# By name, where the class is; each takes the execution, whose engine_options are its own.
_ELSEWHERE = {
    "ssh": "shardmill.engines.ssh.engine:SshEngine",
    "slurm": "shardmill.engines.slurm:SlurmEngine",
    "ray": "shardmill.engines.ray:RayEngine",
}
# What ends workers that do not see the run's folder, or wait in a queue: given the execution, the run and its plan.
_ENDING = {"ssh": "shardmill.engines.ssh.engine:end_workers", "slurm": "shardmill.engines.slurm.engine:end_workers"}


def open_engine(execution: Execution, quiet: bool = True) -> Engine:
    """The engine that a run's execution names, if it is not this machine's own; it says nothing if it is `quiet`."""
    place = _ELSEWHERE.get(execution.engine)
    if place is None:
        known = [LOCAL, *_ELSEWHERE]
        raise SpecError(f"There is no engine {execution.engine!r}.", hint=nearest(execution.engine, known))
    engine = _find(place)(execution)
    engine.quiet = quiet
    return cast(Engine, engine)


def end_workers(execution: Execution, run: str, plan: Plan) -> int:
    """End what was placed for a run, whoever placed it; how many workers were told."""
    place = _ENDING.get(execution.engine)
    return int(_find(place)(execution, run, plan)) if place else 0


def _find(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
