"""Decides after which worker deaths a worker is restarted, and how the others are reported. All engines use it."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

from shardmill.core.errors import EXIT_DONE, EXIT_TRY_AGAIN, WORKER_FAILED, Cure, WorkerFailed
from shardmill.ledger import ENDED, Ledger, Progress, got_on, read_search

_LINES_SHOWN = 8


class Deaths:
    """A seat is a place for a worker. Workers may die `forgiven` times in a row there without any progress.

    If all seats are on `one_machine`, a fault that only another machine can cure is final. So is a task that fails in
    the same place for the workers of all `seats`, by default as many as the run has workers.
    """

    def __init__(self, ledger: Ledger, forgiven: int, *, seats: int = 0, one_machine: bool = False) -> None:
        self._ledger, self._forgiven, self._seats, self._one_machine = ledger, forgiven, seats, one_machine
        self._plan = ledger.plan()
        self._in_a_row: Counter[int] = Counter()
        self._progress = Progress()
        self._given_up: set[int] = set()
        # Where a task failed last, and how often in each seat since anything else happened.
        self._place, self._failed_there = "", Counter[int]()

    def judge(self, seat: int, worker: str, status: int, lines: Sequence[str]) -> WorkerFailed | None:
        """Why no other worker may take this seat, or None if one may. A negative status is a signal.

        Raises if the worker's error is final, or if too few seats are left for those who work on one item together.
        """
        self._ledger.leases.record_death(worker)
        if status == Cure.FINAL or (status == Cure.ELSEWHERE and self._one_machine):
            raise failure(seat, "stopped", lines)
        made_progress = self._progress.made(read_search(self._ledger), got_on(self._ledger.workers.find(worker) or {}))
        self._in_a_row[seat] = 1 if made_progress else self._in_a_row[seat] + 1
        if self._fails_for_all(seat, "" if made_progress else _last_words(lines).get("place", "")):
            hopeless = failure(seat, "stopped", lines)
            hopeless.cure = Cure.ELSEWHERE if self._one_machine else Cure.FINAL
            raise hopeless
        if self._in_a_row[seat] <= self._forgiven:
            return None
        failed = failure(seat, f"died {self._in_a_row[seat]} times in a row ({_describe(status)})", lines)
        self._given_up.add(seat)
        settings = self._ledger.execution()
        # Those of a run with a deadline can do with fewer.
        least = 0 if settings.get("acts") else settings.get("min_workers") or 0
        most = settings.get("workers") or 0
        if least and most - len(self._given_up) < least:
            raise failed
        return failed

    def _fails_for_all(self, seat: int, place: str) -> bool:
        """Whether the task fails in this place for the worker of every seat, and for two at least."""
        if place != self._place:
            self._place, self._failed_there = place, Counter()
        if not place:
            return False
        self._failed_there[seat] += 1
        seats = self._seats or self._ledger.execution().get("workers") or 0
        return 0 < seats <= len(self._failed_there) and self._failed_there.total() > 1

    def forgives_node(self, seat: int) -> bool:
        """Whether another worker may take this seat after one that could not start where it was placed."""
        self._in_a_row[seat] += 1
        return self._in_a_row[seat] <= self._forgiven

    def is_peaceful(self, worker: str, status: int) -> bool:
        """Whether a worker finished, was told to stop, or ended when the run was already complete."""
        if status == EXIT_TRY_AGAIN or self.all_done():
            return True
        # Native code of a task may end a worker with the status of one that is done.
        beat = self._ledger.workers.find(worker) if status == EXIT_DONE else None
        return status == EXIT_DONE and (beat is None or beat["state"] in ENDED)

    def all_done(self) -> bool:
        """Whether the run is complete. A library may crash at process exit, when all is already committed."""
        self._ledger.see_growth(self._plan)
        return self._ledger.commits.is_complete(len(self._plan.shards))


def failure(seat: int, what: str, lines: Sequence[str]) -> WorkerFailed:
    """The error that the worker itself reported, or else its last lines of output."""
    if said := _last_words(lines):
        failed = WorkerFailed(said["message"], hint=said["hint"])
        # Workers of 0.1.0 say neither.
        failed.cure, failed.resumes = Cure[said.get("cure", Cure.FINAL.name)], said.get("resumes", True)
        return failed
    if not lines:
        return WorkerFailed(
            f"Worker {seat} {what} and printed nothing.",
            hint="SIGKILL often means out of memory: try fewer --workers. Committed shards are kept.",
        )
    last = "\n".join(f"  {line}" for line in list(lines)[-_LINES_SHOWN:])
    return WorkerFailed(f"Worker {seat} {what}; its last lines:\n{last}", hint="Committed shards are kept.")


def _last_words(lines: Sequence[str]) -> dict[str, Any]:
    """The error that a worker reported itself; empty if it could not."""
    line = next((line for line in reversed(lines) if line.startswith(WORKER_FAILED)), "")
    return json.loads(line.removeprefix(WORKER_FAILED)) if line else {}


def _describe(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
