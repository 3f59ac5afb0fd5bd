"""Engines place workers: here, on other hosts, in a queue, in a cluster. What a worker does is the same everywhere."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, cast

from shardmill.engines.base import Engine
from shardmill.errors import SpecError, UsageError, nearest
from shardmill.plan import Plan
from shardmill.spec import Execution

LOCAL = "local"
_DETACHABLE = (LOCAL, "slurm", "ray", "kubernetes", "argo", "pool")
# The class of each engine. It takes the execution, whose engine_options belong to that engine.
_ELSEWHERE = {
    "ssh": "shardmill.engines.ssh.engine:SshEngine",
    "slurm": "shardmill.engines.slurm:SlurmEngine",
    "ray": "shardmill.engines.ray:RayEngine",
    "kubernetes": "shardmill.engines.kubernetes.engine:KubernetesEngine",
    "argo": "shardmill.engines.kubernetes.workflow:ArgoEngine",
    "pool": "shardmill.engines.pool:PoolEngine",
}
# Functions that end workers which cannot see the run folder or wait in a queue. Called with execution, run and plan.
_ENDING = {
    **{name: f"shardmill.engines.{name}.engine:end_workers" for name in ("ssh", "slurm", "kubernetes")},
    "argo": "shardmill.engines.kubernetes.workflow:end_workers",
}

# Options that run commands, or connect to what may. A run folder may not choose them for the user who resumes it.
_COMMANDS = {
    "slurm": ("setup", "wrap", "python", "directives"),
    "ray": ("runtime_env", "address"),
    "kubernetes": ("image", "secret", "service_account", "env", "context"),
    "argo": ("context",),
}
# Functions that say whether the workers that the options would place are already placed, by somebody who may.
_PLACED = {"kubernetes": "shardmill.engines.kubernetes.engine:is_placed"}


def check_detachable(execution: Execution) -> None:
    """Refuse to detach workers that end with the process that placed them."""
    if execution.detach and execution.engine not in _DETACHABLE:
        raise UsageError(
            f"--detach is not for the engine {execution.engine!r}: its hosts get their shards from this command.",
            hint="If the hosts can read the run folder, start workers there yourself: shardmill work RUN",
        )


def open_engine(execution: Execution, quiet: bool = True) -> Engine:
    """The engine named by a run's execution, unless it is the local one; a `quiet` engine prints nothing."""
    place = _ELSEWHERE.get(execution.engine)
    if place is None:
        known = [LOCAL, *_ELSEWHERE]
        raise SpecError(f"Unknown engine {execution.engine!r}.", hint=nearest(execution.engine, known))
    engine = _find(place)(execution)
    engine.quiet = quiet
    return cast(Engine, engine)


def end_workers(execution: Execution, run: str, plan: Plan) -> int | None:
    """End the workers of a run, whichever process placed them, and return how many have ended.

    None if the engine has no way to reach them: they see in the run folder that it was stopped.
    """
    place = _ENDING.get(execution.engine)
    if execution.engine == "ssh":
        check_stored(execution, run)
    return int(_find(place)(execution, run, plan)) if place else None


def check_stored(execution: Execution, run: str) -> None:
    """Refuse options from a run folder that would run commands of whoever wrote it."""
    found = [name for name in _COMMANDS.get(execution.engine, ()) if execution.engine_options.get(name)]
    hosts = str(execution.engine_options.get("hosts") or "")
    if execution.engine == "ssh" and hosts and not _is_own(Path(hosts)):
        found = ["hosts"]
    if found and execution.engine in _PLACED and _find(_PLACED[execution.engine])(execution, run):
        return
    if found:
        raise UsageError(
            f"The run folder sets {', '.join(found)} of the engine {execution.engine!r}, which may run commands.",
            hint="Give the engine's options again, or say --allow-code (in Python: allow_code=True).",
        )


def _is_own(file: Path) -> bool:
    """Whether a file belongs to this user or to root, or does not exist."""
    try:
        return file.stat().st_uid in (0, os.getuid())
    except OSError:
        return True


def _find(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
