"""Engines place workers: here, on other hosts, in a queue, in a cluster. What a worker does is the same everywhere."""

from __future__ import annotations

import importlib
from typing import Any, cast

from shardmill.engines.base import Engine
from shardmill.errors import SpecError, nearest
from shardmill.spec import Execution

LOCAL = "local"
# By name, where the class is; each takes the execution, whose engine_options are its own.
_ELSEWHERE = {
    "ssh": "shardmill.engines.ssh.engine:SshEngine",
    "slurm": "shardmill.engines.slurm:SlurmEngine",
    "ray": "shardmill.engines.ray:RayEngine",
}


def open_engine(execution: Execution, quiet: bool = True) -> Engine:
    """The engine that a run's execution names, if it is not this machine's own; it says nothing if it is `quiet`."""
    place = _ELSEWHERE.get(execution.engine)
    if place is None:
        known = [LOCAL, *_ELSEWHERE]
        raise SpecError(f"There is no engine {execution.engine!r}.", hint=nearest(execution.engine, known))
    module, _, name = place.partition(":")
    made: Any = getattr(importlib.import_module(module), name)
    engine = made(execution)
    engine.quiet = quiet
    return cast(Engine, engine)
