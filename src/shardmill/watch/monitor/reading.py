"""One run that is read again and again: its status, its plan and its history."""

from __future__ import annotations

import hashlib
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from shardmill.core.errors import ShardmillError, UsageError
from shardmill.ledger import Editions, HistoryPoint, Ledger, RunForecast
from shardmill.plan import Plan
from shardmill.plan.spec import Execution, make_execution
from shardmill.run.costs.outlook import read_staff, with_outlook
from shardmill.run.editions import with_edition
from shardmill.run.status.state import Status, current_plan, glance
from shardmill.watch.monitor.files import OpenPage, read_tail, shorten
from shardmill.watch.monitor.history import Recorded

# What the workers recorded is read again after this time; in between, what is seen here is added.
_RECORDED_EVERY_S = 60.0
# Pages that other commands leave in a run folder.
REPORTS = ("report.html", "map.html")
_MOST_LOGS = 2000
_LONGEST_ERROR = 10_000
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def name_key(name: str) -> str:
    """What a run is called in addresses and labels: its name if that is plain, else a digest of it.

    >>> name_key("news-2024"), name_key("<b>")
    ('news-2024', '~507ca5a2742e')
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return name if _PLAIN.fullmatch(name) else f"~{digest[:12]}"


@dataclass(frozen=True, slots=True)
class RunSeen:
    """What was last read of a run, at `read_at`; None for what could never be read.

    `trouble` says why it could not be read since, with a `hint`; both are empty while all is well. `version` grows with
    each reading. `logs` are the names of the logs in the folder, `reports` the pages there, and `proof` is the report
    of the last verification. A run that is `gone` was deleted.
    """

    name: str
    url: str
    version: int = 0
    status: Status | None = None
    plan: Plan | None = None
    execution: Execution | None = None
    forecast: RunForecast | None = None
    history: tuple[HistoryPoint, ...] = ()
    logs: frozenset[str] = frozenset()
    reports: tuple[str, ...] = ()
    states_version: str = ""
    read_at: float | None = None
    trouble: str = ""
    hint: str = ""
    proof: dict[str, Any] | None = None
    gone: bool = False

    @property
    def key(self) -> str:
        return name_key(self.name)

    def age_s(self, now: float) -> float | None:
        """Seconds since it was last read."""
        return None if self.read_at is None else max(0.0, now - self.read_at)


class RunReader:
    """Reads one run. A reading that fails keeps the last good one, and says why."""

    def __init__(self, name: str, url: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._editions = Editions(url, clock)
        self._edition = self._editions.number_of(url)
        self._is_pinned = self._edition > 1
        self._ledger = Ledger(self._editions.open(self._edition), clock)
        self._plan: Plan | None = None
        self._recorded = Recorded()
        self._logs: frozenset[str] = frozenset()
        self._reports: tuple[str, ...] = ()
        self._forecast: RunForecast | None = None
        self._around_at, self._around_state = 0.0, ""
        self.seen = RunSeen(name, url)

    def read(self) -> RunSeen:
        """Read the run anew."""
        version = self.seen.version + 1
        try:
            self.seen = replace(self._look(), version=version)
        except ShardmillError as error:
            self.seen = replace(self.seen, version=version, trouble=error.message, hint=error.hint)
        except Exception as error:
            # A folder that others write may hold anything; one bad run must not end the watch over all.
            self.seen = replace(self.seen, version=version, trouble=f"{type(error).__name__}: {error}", hint="")
        return self.seen

    def read_log(self, worker: str) -> str:
        """The last lines of a worker's log, or what it failed with. UsageError if it has none."""
        beats = self.seen.status.workers if self.seen.status else []
        beat = next((beat for beat in beats if beat["id"] == worker), None)
        if beat is None:
            raise UsageError("There is no such worker.")
        key = str(beat.get("log"))
        if key not in self.seen.logs:
            if beat.get("error"):
                return shorten(beat["error"], _LONGEST_ERROR)
            raise UsageError("This worker has no log in the run folder.")
        return read_tail(self._ledger.store, key)

    def open_page(self, name: str) -> OpenPage:
        """A page in the run folder; UsageError if there is none."""
        if name not in REPORTS:
            raise UsageError("There is no such page.")
        return OpenPage(self._ledger.store, name)

    def lose(self) -> RunSeen:
        """The run's folder is no longer there."""
        gone = f"{self.seen.url}: the run was deleted while it was watched."
        self.seen = replace(self.seen, version=self.seen.version + 1, trouble=gone, hint="", gone=True)
        return self.seen

    def _open(self) -> None:
        """Open the current edition of the run, unless it is open; the folder of one edition stays what it is."""
        number = self._edition if self._is_pinned else self._editions.current()
        if number != self._edition:
            self._ledger = Ledger(self._editions.open(number), self._clock)
            self._edition, self._plan = number, None

    def _look(self) -> RunSeen:
        self._open()
        before, self._plan = self._plan, current_plan(self._ledger, self._plan)
        if before is None or before.generation != self._plan.generation:
            self._recorded, self._around_state = Recorded(), ""
        execution = make_execution(self._ledger.execution())
        status = with_outlook(glance(self._ledger, self._plan), execution, read_staff(self._ledger, execution))
        status = with_edition(status, self._ledger)
        now = self._clock()
        if self._is_due(now, status.state):
            self._look_around(status)
            self._around_at, self._around_state = now, status.state
        elif status.view_age_s is not None:
            self._recorded.read(self._ledger, status)
        self._recorded.add(status)
        return RunSeen(
            name=self.seen.name,
            url=self._ledger.url,
            status=status,
            plan=self._plan,
            execution=execution,
            forecast=self._forecast,
            history=self._recorded.points(),
            logs=self._logs,
            reports=self._reports,
            states_version=f"{zlib.crc32(status.states, len(status.states)):08x}",
            read_at=now,
            proof=self._ledger.notes.report() if status.state == "complete" else None,
        )

    def _is_due(self, now: float, state: str) -> bool:
        """Whether what changes seldom is read: at first, after a change of state, and now and then."""
        return state != self._around_state or now - self._around_at >= _RECORDED_EVERY_S

    def _look_around(self, status: Status) -> None:
        """Read what changes seldom: the past as it was recorded, the forecast, which logs and pages there are."""
        store = self._ledger.store
        self._recorded.read(self._ledger, status)
        self._forecast = self._ledger.notes.forecast()
        self._logs = frozenset(entry.key for entry in islice(store.list("logs/"), _MOST_LOGS))
        self._reports = tuple(name for name in REPORTS if store.head(name) is not None)
