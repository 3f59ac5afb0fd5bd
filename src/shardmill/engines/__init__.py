"""Engines place workers: here, on other hosts, in a queue, in a cluster. What a worker does is the same everywhere.

Each is declared as an `EngineKind`, in `kinds` or by an installed package, and keeps the contract in `base`.

Design: docs/design/engines.md
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from shardmill.core.errors import SpecError, UsageError, nearest
from shardmill.engines.base import Engine
from shardmill.plan import Plan
from shardmill.plan.spec import Execution
from shardmill.plugins import EngineKind, find, names

LOCAL = "local"


def find_kind(name: str) -> EngineKind:
    """The declaration of an engine."""
    kind: EngineKind | None = find("engines", name)
    if kind is None:
        raise SpecError(f"Unknown engine {name!r}.", hint=nearest(name, names("engines")))
    return kind


def check_detachable(execution: Execution) -> None:
    """Refuse to detach workers that end with the process that placed them."""
    if execution.detach and not find_kind(execution.engine).detachable:
        raise UsageError(
            f"--detach is not for the engine {execution.engine!r}: its hosts get their shards from this command.",
            hint="If the hosts can read the run folder, start workers there yourself: shardmill work RUN",
        )


def check_device(execution: Execution) -> None:
    """Refuse GPUs by number where somebody else assigns them."""
    kind = find_kind(execution.engine)
    if ":" in execution.device and kind.gpus_by:
        raise UsageError(
            f"--device {execution.device} is not for the engine {execution.engine!r}: {kind.gpus_by} assigns the GPUs.",
            hint="Use --device cuda or --device cpu.",
        )


def open_engine(execution: Execution, quiet: bool = True) -> Engine:
    """The engine named by a run's execution, unless it is the local one; a `quiet` engine prints nothing."""
    engine = find_kind(execution.engine).part("engine")(execution)
    engine.quiet = quiet
    return cast(Engine, engine)


def end_workers(execution: Execution, run: str, plan: Plan) -> int | None:
    """End the workers of a run, whichever process placed them, and return how many have ended.

    None if the engine has no way to reach them: they see in the run folder that it was stopped.
    """
    kind = find_kind(execution.engine)
    if kind.own_files:
        check_stored(execution, run)
    end = kind.part("end_workers")
    return int(end(execution, run, plan)) if end is not None else None


def check_stored(execution: Execution, run: str) -> None:
    """Refuse options from a run folder that would run commands of whoever wrote it."""
    kind, given = find_kind(execution.engine), execution.engine_options
    found = [name for name in (given if kind.commands is None else kind.commands) if given.get(name)]
    found += [name for name in kind.own_files if given.get(name) and not _is_own(Path(str(given[name])))]
    is_placed = kind.part("is_placed") if found else None
    if is_placed is not None and is_placed(execution, run):
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
