"""The editions of a run: which one is read, what is being made, and what each refresh did.

Design: docs/design/editions.md
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from shardmill.core.console import duration
from shardmill.core.errors import ShardmillError
from shardmill.ledger import REFRESH, Edition, Editions, Ledger
from shardmill.plan import Plan
from shardmill.run.costs.cost import read_cost
from shardmill.run.status.edition import EditionState
from shardmill.run.status.state import Status, glance, read_status

_ROW = "{:>7} {:<16} {:<16} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9} {:>14}"
HEADER = ("edition", "state", "made", "items", "reused", "computed", "dropped", "time", "cost", "saved")
CURRENT, KEPT, PRUNED, UNKNOWN = "current", "kept", "pruned", "unknown"


@dataclass(frozen=True, slots=True)
class EditionLine:
    """One edition of a run, and what the refresh that made it did; None for what is not known.

    `state` is current, kept or pruned; of an edition that was never read, it is that of a run. It takes rows over from
    the edition `base`, 0 for the first one; `kind` says what made it: refresh or migrate. `dropped` are items of the
    edition before whose rows were not taken over: they were edited, had failed, or are gone.
    """

    edition: int
    state: str
    base: int = 0
    kind: str = ""
    at: float | None = None
    items: int | None = None
    reused: int | None = None
    computed: int | None = None
    dropped: int | None = None
    seconds: float | None = None
    usd: float | None = None
    seconds_saved: float | None = None
    usd_saved: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_editions(place: str | os.PathLike[str], most: int | None = None) -> list[EditionLine]:
    """The editions of a run, the oldest first; with `most`, the newest ones."""
    editions = Editions(place)
    lines: dict[int, EditionLine] = {}
    for each in editions.all(most):
        line = _describe(Ledger(editions.open(each.number)), each)
        before = lines.get(line.base)
        if line.dropped is None and line.reused is not None and before is not None and before.items is not None:
            line = replace(line, dropped=max(0, before.items - line.reused))
        lines[line.edition] = line
    return [*lines.values()]


def read_edition(ledger: Ledger, status: Status | None = None) -> EditionState | None:
    """How the refreshes of a run go, as the edition of this ledger sees it; None if it was never refreshed."""
    editions = Editions(ledger.url)
    number = editions.number_of(ledger.url)
    noted = Ledger(editions.open(1)).notes.refreshes()
    if noted is None and number == 1:
        return None
    state = EditionState(number, _made_at(editions, ledger, number, status))
    if noted is not None:
        same = ("fresh_at", "behind_since", "failures", "failed_at", "error")
        state = replace(state, **{name: getattr(noted, name) for name in same})
    begun = editions.find_begun(number, REFRESH) if editions.current() == number else None
    made = None if begun is None else _look(Ledger(editions.open(begun)))
    return state if begun is None or made is None else replace(state, next=begun, **made)


def with_edition(status: Status, ledger: Ledger) -> Status:
    """The status with which edition it is of, if the run was ever refreshed."""
    return replace(status, edition=read_edition(ledger, status))


def _made_at(editions: Editions, ledger: Ledger, number: int, status: Status | None) -> float | None:
    """When an edition was complete, or was begun if that is not known."""
    if (summary := ledger.notes.summary()) is not None:
        return summary.at
    if number > 1:
        return editions.origin(number).made_at or None
    return _last_sign(status) if status is not None and status.state == "complete" else None


def _last_sign(status: Status) -> float | None:
    return max((float(worker["at"]) for worker in status.workers), default=None)


def _look(ledger: Ledger) -> dict[str, Any] | None:
    """The state of an edition that is not read yet; None if it has no plan."""
    plan = ledger.find_plan()
    if plan is None:
        return None
    seen = glance(ledger, plan)
    return {"next_state": seen.state, "next_share": seen.share}


def _describe(ledger: Ledger, edition: Edition) -> EditionLine:
    state = CURRENT if edition.current else PRUNED if edition.pruned else KEPT
    line = EditionLine(edition.number, state, edition.base, edition.kind, edition.made_at or None)
    if (said := ledger.notes.summary()) is not None:
        same = ("at", "items", "reused", "computed", "seconds", "usd", "seconds_saved", "usd_saved")
        line = replace(line, **{name: getattr(said, name) for name in same})
        return replace(line, dropped=max(0, said.items_before - said.reused))
    try:
        if edition.pruned:
            return line
        if not edition.was_read:
            found = _look(ledger)
            return replace(line, state="begun" if found is None else found["next_state"])
        return _add_up(ledger, ledger.plan(), line)
    except (ShardmillError, FileNotFoundError):
        return replace(line, state=UNKNOWN)


def _add_up(ledger: Ledger, plan: Plan, line: EditionLine) -> EditionLine:
    """An edition without a summary, by its commits: the first, or one whose refresh was killed at its end."""
    cost = read_cost(ledger, plan)
    line = replace(line, seconds=cost.seconds, usd=cost.usd)
    if line.edition == 1:
        status = read_status(ledger, plan)
        items = status.rows - status.dropped * plan.work.takes_part
        return replace(line, at=_last_sign(status), items=items, reused=0, computed=items, dropped=0)
    commits = ledger.commits.read_complete(plan)
    items = sum(commit.rows - commit.dropped * plan.work.takes_part for commit in commits)
    reused = sum(commit.reused for commit in commits)
    return replace(line, items=items, reused=reused, computed=items - reused)


def to_cells(line: EditionLine) -> tuple[str, ...]:
    """An edition as a row of a table, under `HEADER`; what is not known is empty."""
    counts = ("" if n is None else f"{n:,}" for n in (line.items, line.reused, line.computed, line.dropped))
    state = f"{line.state}, {line.kind}" if line.kind not in ("", REFRESH) else line.state
    made = "" if line.at is None else f"{datetime.fromtimestamp(line.at):%Y-%m-%d %H:%M}"
    took = "" if line.seconds is None else duration(line.seconds)
    saved = duration(line.seconds_saved) if line.seconds_saved else ""
    saved += f", {_usd(line.usd_saved)}" if saved and line.usd_saved is not None else ""
    return f"{line.edition}", state, made, *counts, took, _usd(line.usd), saved


def show_editions(lines: list[EditionLine]) -> None:
    for cells in (HEADER, *map(to_cells, lines)):
        print(_ROW.format(*cells).rstrip())


def _usd(usd: float | None) -> str:
    return "" if usd is None else f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"
