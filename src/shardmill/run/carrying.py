"""The `[work]` and `[execution]` of a spec as a run, whatever the task: settled, searched runs made ready, started."""

from __future__ import annotations

import os
from typing import Any

from shardmill.core.errors import UsageError
from shardmill.plan.spec import make_spec
from shardmill.plugins import find_verb
from shardmill.run import loading
from shardmill.run.renewing import start_or_refresh
from shardmill.run.result import Run
from shardmill.run.running import prepare, start
from shardmill.run.searchable import make_searchable
from shardmill.run.spilling import keep_source

Place = str | os.PathLike[str]


def carry_out(work: dict[str, Any], execution: dict[str, Any], out: Place | None = None, **how: Any) -> Run:
    """Run the tables of a spec, into a folder or into a table of a database. `how` is passed to `start`."""
    work = _make_ready(work, quiet=how.get("quiet", True))
    if how.pop("refresh", False):
        return start_or_refresh(work, execution, name_folder(out), **how)
    if work.get("to"):
        return loading.load(work, execution, out or "", **how)
    place = name_folder(out)
    work = keep_source(work, place, fresh=how.get("fresh", False))
    return start(make_spec(work, execution), place, **how)


def prepare_work(work: dict[str, Any], execution: dict[str, Any], out: Place, **how: Any) -> Run:
    """Write the run folder that `carry_out` would write, and place nobody. `how` is passed to `prepare`."""
    work = _make_ready(work, quiet=how.get("quiet", True))
    if work.get("to"):
        return loading.prepare(work, execution, out, **how)
    work = keep_source(work, out, fresh=how.get("fresh", False))
    return prepare(make_spec(work, execution), out, **how)


def name_folder(out: Place | None) -> Place:
    """The folder of a run, which has to be named."""
    if not out:
        raise UsageError("No --out was given.", hint="Name a folder for the run: --out runs/mine")
    return out


def _make_ready(work: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Let workers search the runs and tables that the task's parameters name."""
    params = dict(work.get("params") or {})
    for name in find_verb(work.get("task") or "embed").searches:
        if place := params.get(name):
            params[name] = make_searchable(os.fspath(place), quiet=quiet)
    return {**work, "params": params} if "params" in work else work
