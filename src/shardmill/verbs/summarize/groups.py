"""Summaries of items, and of groups: a run over the items, then one over the groups of its rows; or a tree of runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from shardmill.core.errors import GroupTooLarge, SpecError, UsageError
from shardmill.engines.base import Engine
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec, settle_server
from shardmill.run import Run, start
from shardmill.run.carrying import carry_out, name_folder
from shardmill.run.loading import complete_work, default_out, load_spec
from shardmill.run.spilling import keep_source
from shardmill.verbs.summarize.method import find_method
from shardmill.verbs.summarize.rouge import CURRENT

_COUNTS = ("items", "left_out")


def settle_method(work: dict[str, Any]) -> dict[str, Any]:
    """The work with its task and method: a model that writes is used to write, any other to choose sentences."""
    if (task := work.get("task", "summarize")) != "summarize":
        raise SpecError(f"The task is {task!r}, not summarize.", hint="shardmill run --spec FILE runs any task.")
    params = dict(work.get("params", {}))
    if not params.get("method"):
        params["method"] = find_method(params.get("model"), params.get("endpoint"))
    return {**work, "task": task, "params": params}


def settle_rouge(work: dict[str, Any], place: str | os.PathLike[str], *, fresh: bool) -> dict[str, Any]:
    """The work with the way to compute ROUGE: that of the run at `place`, if it began with another; else the latest."""
    params = work["params"]
    if not params.get("reference") or "rouge" in params:
        return work
    before = None if fresh else Ledger(place).find_plan()
    if before is not None and before.work.params.get("reference") and "rouge" not in before.work.params:
        return work
    return {**work, "params": {**params, "rouge": CURRENT}}


def summarize_work(
    work: dict[str, Any], execution: dict[str, Any], out: str | os.PathLike[str] | None = None, **how: Any
) -> Run:
    """Run the `[work]` and `[execution]` of a spec whose task is `summarize`; `group_by` is of the summaries."""
    work, execution = settle_server(work, execution)
    work = settle_method(work)
    grouped, fresh = bool(work.get("group_by")), bool(how.get("fresh"))
    place = os.fspath(out or "").rstrip("/") or (default_out(complete_work(work)) if work.get("to") else "")
    if place:
        work = settle_rouge(work, f"{place}-items" if grouped else place, fresh=fresh)
    if not grouped:
        return carry_out(work, execution, out, **how)
    if how.pop("refresh", False):
        raise UsageError("--refresh cannot be used with --group-by: an item is a group of rows.", hint="Leave it out.")
    folder = name_folder(out)
    if work.get("to"):
        return start_groups({**work, "to": complete_work(work)["to"]}, execution, folder, last=load_spec, **how)
    return start_groups(work, execution, folder, **how)


def start_groups(
    work: dict[str, Any],
    execution: dict[str, Any],
    out: str | os.PathLike[str],
    *,
    fresh: bool = False,
    resume: bool = False,
    quiet: bool = True,
    engine: Engine | None = None,
    last: Callable[..., Run] = start,
) -> Run:
    """Summarize every item into OUT-items, then every group of these summaries into OUT. The same call resumes both.

    If a group is too large for one item, its pieces are summarized first, into OUT-pieces, and so on. `last` starts the
    run of the groups; one that loads a table takes `to` of the work.
    """
    if execution.get("detach"):
        raise UsageError(
            "--detach cannot be used with --group-by: the groups are planned when the items are done.",
            hint="Leave out --detach; after a kill, the same command resumes.",
        )
    place = os.fspath(out).rstrip("/")
    work = dict(work)
    key, to = work.pop("group_by"), work.pop("to", None)
    work = keep_source(work, f"{place}-items", fresh=fresh)
    how: dict[str, Any] = {"fresh": fresh, "quiet": quiet, "engine": engine}
    each = {**execution, "then": ()}
    items = start(
        make_spec({**work, "keep": _with(work.get("keep"), key)}, each), f"{place}-items", resume=resume, **how
    )
    params = {name: value for name, value in work.get("params", {}).items() if name != "reference"}
    groups = {"text": "summary", "group_by": key, "task": work["task"], "params": {**params, "lead": False}}
    groups |= {name: work[name] for name in ("max_item_bytes",) if name in work}
    below, level = items, 0
    while True:
        wanted = {**groups, "source": f"run:{below.ledger.url}", "keep": _COUNTS if level else ()}
        try:
            return last(make_spec({**wanted, "id": key, "to": to}, execution), place, **how)
        except GroupTooLarge as error:
            level += 1
            pieces = f"{place}-pieces" + (f"-{level}" if level > 1 else "")
            made = start(make_spec(wanted, each), pieces, **how)
            if made.status().rows >= below.status().rows:
                raise UsageError(
                    f"The summaries of its pieces are no shorter than the group: {error.message}",
                    hint="Raise max_item_bytes in [work] of a spec, or ask for fewer sentences.",
                ) from error
            below = made


def find_items(run: Run) -> Run | None:
    """The run over the items, of a run over their groups that `start_groups` made; None for any other."""
    work, place = run.plan.work, f"{run.ledger.url}-items"
    if work.task != "summarize" or not work.group_by or Ledger(place).find_plan() is None:
        return None
    return Run(place)


def _with(kept: Any, name: str) -> tuple[str, ...]:
    names = [kept] if isinstance(kept, str) else list(kept or ())
    return tuple(dict.fromkeys([part.strip() for each in names for part in each.split(",")] + [name]))
