"""Which deaths of workers are forgiven, and what is said of those that are not. Every engine judges by it."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Sequence

from shardmill.errors import EXIT_DONE, EXIT_FINAL, EXIT_TRY_AGAIN, WORKER_FAILED, WorkerFailed
from shardmill.ledger import Ledger

_WIDEST = (1 << 62, 0)
_LINES_SHOWN = 8


class Deaths:
    """A seat is a place for a worker. One may die `forgiven` times in a row there without having got anything done."""

    def __init__(self, ledger: Ledger, forgiven: int) -> None:
        self._ledger, self._forgiven = ledger, forgiven
        self._shards = len(ledger.plan().shards)
        self._in_a_row: Counter[int] = Counter()
        self._convicted = 0
        self._narrowest = _WIDEST

    def judge(self, seat: int, worker: str, status: int, lines: Sequence[str]) -> WorkerFailed | None:
        """Of a worker that ended with an exit status, or by signal -status: why no other may take its place.

        None: another may. What can never go well is raised.
        """
        self._ledger.leases.record_death(worker)
        if status == EXIT_FINAL:
            raise failure(seat, "stopped", lines)
        self._in_a_row[seat] = 1 if self._came_forward(worker) else self._in_a_row[seat] + 1
        if self._in_a_row[seat] <= self._forgiven:
            return None
        return failure(seat, f"died {self._in_a_row[seat]} times in a row ({_say(status)})", lines)

    def is_peaceful(self, status: int) -> bool:
        """Whether a worker ended because it was done or was told to; or when there is nothing left to die for."""
        return status in (EXIT_DONE, EXIT_TRY_AGAIN) or self.all_done()

    def all_done(self) -> bool:
        """A library may crash as its process ends; what is committed stays committed."""
        return self._ledger.commits.is_complete(self._shards)

    def _came_forward(self, worker: str) -> bool:
        """Whether a dead worker left less to do: a shard done, a row convicted of killing workers, or fewer rows under
        that suspicion than ever before. Each can happen only so often."""
        suspects = [self._ledger.suspects.get(shard) for shard in self._ledger.leases.read()]
        convicted = sum(len(s.poison) for s in suspects)
        narrowest = min(((len(s.rows), -s.strikes) for s in suspects if s.rows), default=_WIDEST)
        if convicted > self._convicted:
            self._convicted, self._narrowest = convicted, narrowest
            return True
        if narrowest < self._narrowest:
            self._narrowest = narrowest
            return True
        return any(b["commits"] for b in self._ledger.workers.read() if b["id"] == worker)


def failure(seat: int, what: str, lines: Sequence[str]) -> WorkerFailed:
    """What a worker itself said of its end, or else its last lines."""
    for line in reversed(lines):
        if line.startswith(WORKER_FAILED):
            said = json.loads(line.removeprefix(WORKER_FAILED))
            return WorkerFailed(said["message"], hint=said["hint"])
    if not lines:
        return WorkerFailed(
            f"Worker {seat} {what} and said nothing.",
            hint="SIGKILL is often the system out of memory: try fewer --workers. What is done is kept.",
        )
    last = "\n".join(f"  {line}" for line in list(lines)[-_LINES_SHOWN:])
    return WorkerFailed(f"Worker {seat} {what}; its last lines:\n{last}", hint="What is done is kept.")


def _say(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
