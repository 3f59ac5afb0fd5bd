"""All runs in a folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from shardmill.core.console import clean, duration
from shardmill.core.errors import ShardmillError, UsageError
from shardmill.ledger import Editions, EditionSummary, Ledger
from shardmill.run.status.screen import cut_left
from shardmill.run.status.state import glance
from shardmill.store import list_folders, open_store

_ASKED_AT_ONCE = 8
_ROW = "{:<30} {:<10} {:>6} {:>13} {:>8} {:>8}"


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of a list. `age_s` are the seconds since the last sign of life; `trouble` says why it cannot be read.

    `edition` is the one that is read, and `refreshed` what the refresh that made it did, if one made it.
    """

    run: str
    state: str = ""
    share: float = 0.0
    rows: int = 0
    errors: int = 0
    rows_per_s: float = 0.0
    eta_s: float | None = None
    age_s: float | None = None
    task: str = ""
    trouble: str = ""
    edition: int = 1
    refreshed: EditionSummary | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_runs(place: str) -> list[RunLine]:
    """The runs in a folder, one level deep, or the one run that it is."""
    store = open_store(place)
    if store.head("plan.json") is not None:
        return [line for line in [_describe(store.url)] if line is not None]
    try:
        places = list_folders(place)
    except FileNotFoundError:
        raise UsageError(f"{store.url}: no such folder.", hint="Give the folder that the runs are in.") from None
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        found = [line for line in pool.map(_describe, places) if line is not None]
    if not found:
        raise UsageError(f"{store.url}: no run found here.", hint="Give the folder that the runs are in.")
    return found


def _describe(place: str) -> RunLine | None:
    """One run; None if the folder holds none."""
    try:
        ledger = Ledger(place)
        plan = ledger.find_plan()
        if plan is None:
            return None
        seen = glance(ledger, plan)
    except ShardmillError as error:
        return RunLine(place, trouble=error.message)
    signs = [worker["at"] for worker in seen.workers]
    age_s = max(0.0, seen.at - max(signs)) if signs else None
    return RunLine(
        run=place,
        state=seen.state,
        share=seen.share,
        rows=seen.rows,
        errors=seen.errors,
        rows_per_s=seen.rows_per_s,
        eta_s=seen.eta_s if seen.state == "running" else None,
        age_s=age_s,
        task=plan.work.task,
        edition=(number := Editions(ledger.url).number_of(ledger.url)),
        refreshed=ledger.notes.summary() if number > 1 else None,
    )


def show_runs(lines: list[RunLine]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(_ROW.format("run", "state", "done", "rows", "rows/s", "seen")))
    for text in _render(lines):
        console.print(Text(text))


def _render(lines: list[RunLine]) -> Iterator[str]:
    for line in lines:
        name = cut_left(clean(line.run.rstrip("/").rpartition("/")[2]), 30)
        if line.trouble:
            yield f"{name:<30} cannot be read: {clean(line.trouble)}"
            continue
        share = f"{100 * line.share:.1f}%"
        seen = "" if line.age_s is None else _short(line.age_s)
        yield _ROW.format(name, line.state, share, f"{line.rows:,}", f"{line.rows_per_s:,.0f}", seen).rstrip()
        if line.edition > 1:
            yield f"  edition {line.edition}{_did(line.refreshed)}"


def _did(refreshed: EditionSummary | None) -> str:
    """What a refresh did, behind the number of its edition."""
    if refreshed is None:
        return ""
    saved = f", {duration(refreshed.seconds_saved)} saved" if refreshed.seconds_saved else ""
    dropped = max(0, refreshed.items_before - refreshed.reused)
    age = _short(max(0.0, time.time() - refreshed.at))
    return f", {age} old: {refreshed.reused:,} reused, {refreshed.computed:,} computed, {dropped:,} dropped{saved}"


def _short(seconds: float) -> str:
    """How long ago, in one unit.

    >>> _short(5), _short(300), _short(90_000)
    ('5 s', '5 min', '1 d')
    """
    if seconds < 3600:
        return duration(seconds).partition(" min")[0] + (" min" if seconds >= 60 else "")
    return f"{int(seconds // 3600)} h" if seconds < 86400 else f"{int(seconds // 86400)} d"
