"""A run from start to end, and what its folder tells: plan, state, cost, report.

Names are imported when they are used: who only looks at a run loads nothing that computes.

Design: docs/design/runs-without-a-parent.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardmill.run.result import Run
    from shardmill.run.running import StoppedRun, prepare, resume, start, stop
    from shardmill.run.working import work

__all__ = ["Run", "StoppedRun", "prepare", "resume", "start", "stop", "work"]

_HOMES = {"Run": "result", "work": "working"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'running')}"), name)
