"""One command for a run and for its refreshes: it begins the run if there is none, and refreshes it otherwise.

Design: docs/design/editions.md
"""

from __future__ import annotations

import os
from typing import Any

from shardmill.core.console import is_quiet, say
from shardmill.core.errors import UsageError
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import Spec, make_spec
from shardmill.run.changes import differences_of_work
from shardmill.run.planner import make_plan
from shardmill.run.planning import open_placer, permit
from shardmill.run.refreshing import beyond_item, other_work, refresh
from shardmill.run.result import Run
from shardmill.run.running import resume, start
from shardmill.sources.held import HeldData
from shardmill.sources.pipe import find_pipe


def start_or_refresh(
    work: dict[str, Any],
    execution: dict[str, Any],
    out: str | os.PathLike[str],
    *,
    allow_code: bool = False,
    quiet: bool | None = None,
    **how: Any,
) -> Run:
    """Begin a run, go on with one that is not complete, or refresh one that is. `how` are arguments of `start`."""
    _refuse_unrepeatable(work, execution)
    spec, ledger = make_spec(work, execution), Ledger(out)
    if why := beyond_item(spec.work):
        raise UsageError(f"This run could not be refreshed: {why}.", hint="Leave out --refresh.")
    plan = ledger.find_plan()
    if plan is None:
        return start(spec, out, allow_code=allow_code, quiet=quiet, **how)
    permit(spec, of_model=allow_code)
    if len(ledger.commits.shards()) < len(plan.shards):
        _refuse_another(ledger, plan, spec)
        resume(out, execution, allow_code=allow_code, quiet=quiet)
    # What the run was delivered to keeps the edition that it has.
    changes = {name: value for name, value in execution.items() if name != "into"}
    done = refresh(out, changes, work=spec.work, allow_code=allow_code, quiet=quiet)
    if not is_quiet(quiet):
        say(done.describe())
    return Run(out)


def _refuse_unrepeatable(work: dict[str, Any], execution: dict[str, Any]) -> None:
    """Refuse what cannot be refreshed the next time, before anything is computed."""
    if work.get("to"):
        raise UsageError(
            "--refresh is for runs, and --to loads a table, from which no rows are deleted.",
            hint="--into URL#TABLE delivers a run to a table, and keeps it up. Or use --changed-only, which only adds.",
        )
    if execution.get("detach"):
        raise UsageError("--refresh waits until the edition is complete.", hint="Leave out --detach.")
    source = work.get("source")
    if isinstance(source, HeldData) or (not work.get("query") and find_pipe(source)):
        raise UsageError("--refresh needs a source that can be read again.", hint="Write it to a file first.")


def _refuse_another(ledger: Ledger, plan: Plan, spec: Spec) -> None:
    """Refuse to complete a run that another command has begun."""
    _, devices = open_placer(spec, None, True)
    made, other = differences_of_work(plan, make_plan(spec, devices, like=plan))
    if made or other:
        raise other_work(ledger, [*other, *made], "Complete it first by the options that it was begun with.")
