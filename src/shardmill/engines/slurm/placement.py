"""Seats filled from a queue: which task has each seat, how tasks ended, and which are queued again."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.core.devices import format_cpus
from shardmill.core.errors import (
    EngineRefused,
    EngineSilent,
    ShardmillError,
    StoreError,
    WorkerFailed,
)
from shardmill.engines.deaths import Deaths
from shardmill.engines.slurm import commands, ends
from shardmill.engines.slurm.commands import ArrayTask
from shardmill.engines.slurm.ends import last_lines, log_folder
from shardmill.engines.slurm.options import SlurmOptions
from shardmill.engines.slurm.reasons import describe
from shardmill.engines.slurm.script import make_script, worker_ending
from shardmill.ledger import Ledger, got_on, idle_s
from shardmill.plan.spec import Execution

# Poll often while tasks change state, rarely otherwise: squeue puts load on the cluster.
_LOOK_S, _LOOK_AT_MOST_S = 2.0, 15.0
_SAY_AGAIN_S = 20.0
# Slurm kills tasks that do not end by themselves after KillWait, 30 s by default.
_STOP_S = 60.0
_BEATS_WITHIN_S = 10.0
# Some sites answer squeue from a cache.
_SHOWN_WITHIN_S = 30.0


@dataclass(slots=True)
class _Seat:
    """A task of an array, or none while it waits to be queued; `seen` is the task's last known state."""

    number: int
    job: int = 0
    index: int = 0
    seen: ArrayTask | None = None
    queued_at: float = 0.0
    running_since: float = 0.0
    waits: bool = True

    @property
    def restarts(self) -> int:
        return self.seen.restarts if self.seen is not None else 0

    @property
    def ending(self) -> str:
        return f"-{worker_ending(self.job, self.index, self.restarts)}"


class SlurmPlacement:
    def __init__(self, run: str, name: str, options: SlurmOptions, kind: str, execution: Execution) -> None:
        self._run, self._name, self._options, self._kind = run, name, options, kind
        self._stuck_s, self._acts = execution.stuck_s, execution.acts
        self._ledger = Ledger(run)
        self._deaths = Deaths(self._ledger, execution.max_restarts)
        self._logs = log_folder(self._ledger, options)
        self._seats = [_Seat(i) for i in range(execution.workers or 1)]
        self._array_size = 0
        self._looked_at = self._changed_at = self._said_at = 0.0
        self._line = ""
        self._beats: list[dict[str, Any]] | None = None
        self._failed: WorkerFailed | None = None
        self._given_up: set[int] = set()
        self._refused: ShardmillError | None = None
        self._was_silent = False
        self._done_since = 0.0

    def start(self) -> None:
        """Adopt tasks that an earlier process left in the queue, and queue the rest."""
        self._array_size = commands.array_size()
        for task in commands.tasks(self._names()):
            number = self._offset_of(task) + task.index
            # A task that is completing works no more: its seat would stay empty if it was cancelled.
            if task.active and task.state not in commands.ENDING and number < len(self._seats):
                self._sit(self._seats[number], task.job, task.index)
        try:
            self._queue()
            self._look()
        except BaseException:
            self.stop()
            raise

    def detach(self) -> None:
        """Leave the tasks to Slurm: `start` of a later placement adopts them."""

    def poll(self) -> bool:
        now = time.monotonic()
        quiet_s = now - self._changed_at
        if now - self._looked_at >= (_LOOK_S if self._done_since else min(max(_LOOK_S, quiet_s / 20), _LOOK_AT_MOST_S)):
            self._look()
        if any(s.job for s in self._seats):
            return True
        why = self._refused or self._failed
        if why is not None and not self._deaths.all_done():
            raise why
        return False

    def stop(self) -> None:
        """Cancel all tasks. Slurm tells running ones to stop, and kills those that do not."""
        jobs = {s.job for s in self._seats if s.job}
        for seat in self._seats:
            seat.job = 0
        if jobs:
            self._cancel(jobs)
            self._wait_for_the_end(jobs)
        self._note("")

    def _cancel(self, jobs: set[int]) -> None:
        numbers = list(map(str, sorted(jobs)))
        try:
            commands.cancel(*numbers)
        except EngineSilent as error:
            raise EngineSilent(
                f"The workers could not be cancelled and still run: {error.message}",
                hint=f"Once Slurm answers: scancel {' '.join(numbers)}",
            ) from error

    def _wait_for_the_end(self, jobs: set[int]) -> None:
        deadline = time.monotonic() + _STOP_S
        while time.monotonic() < deadline:
            try:
                active = [t for t in commands.tasks(self._names()) if t.job in jobs and t.active]
            except EngineSilent:
                return
            if all(t.state in commands.ENDING for t in active) and not self._alive(active):
                return
            time.sleep(0.3)

    def _alive(self, ending: Sequence[ArrayTask]) -> bool:
        """Whether a worker of these completing tasks still runs, by its heartbeat."""
        endings = tuple(f"-{worker_ending(t.job, t.index, t.restarts)}" for t in ending)
        beats = [b for b in self._ledger.workers.read() if b["id"].endswith(endings)] if endings else []
        lately = time.time() - _BEATS_WITHIN_S
        return any(b["at"] > lately and b["state"] not in ("done", "stopped", "failed") for b in beats)

    # looking

    def _look(self) -> None:
        self._beats = None
        try:
            found = {(t.job, t.index): t for t in commands.tasks(self._names())}
        except EngineSilent as error:
            self._was_silent = True
            self._say(f"Slurm does not answer: {error.message}")
        else:
            for seat in self._seats:
                if seat.job:
                    self._notice(seat, found.get((seat.job, seat.index)))
            self._was_silent = False
            self._end_stuck()
            self._follow()
            self._queue()
            refused = f"; no more are accepted: {self._refused.message}" if self._refused is not None else ""
            self._say(describe([s.seen for s in self._seats if s.job and s.seen is not None]) + refused)
        self._end_leftover()
        self._looked_at = time.monotonic()

    def _notice(self, seat: _Seat, task: ArrayTask | None) -> None:
        before = seat.seen
        late = time.monotonic() - seat.queued_at > _SHOWN_WITHIN_S
        if task == before and (task.active if task is not None else not late):
            return
        self._changed_at = time.monotonic()
        if before is not None and task is not None and task.restarts > before.restarts:
            self._excuse(seat)
            seat.running_since = 0.0
        if task is None or not task.active:
            self._ended(seat, task)
            return
        seat.seen = task
        if task.state in commands.RUNNING and not seat.running_since:
            seat.running_since = time.time()

    def _ended(self, seat: _Seat, task: ArrayTask | None) -> None:
        """Decide about the seat of a task that ended or left the queue.

        A task that leaves the queue before it runs was cancelled, unless Slurm restarted meanwhile and lost it.
        """
        lost = seat.running_since > 0.0 or self._was_silent
        if task is not None:
            seat.seen = task
        over = task.state in ends.CANCELLED or self._is_done(seat, task) if task is not None else not lost
        # At the budget workers end before the run is complete, each as if it were told to.
        over = over or self._ledger.staff.is_ending
        if not over and self._ledger.state.is_wanted() and not self._deaths.all_done():
            state, status = (task.state, task.status) if task is not None else ("", -signal.SIGKILL)
            self._judge(seat, state, status, last_lines(self._logs, seat.job, seat.index))
        seat.job = 0

    def _is_done(self, seat: _Seat, task: ArrayTask) -> bool:
        return task.state == "COMPLETED" and self._deaths.is_peaceful(self._worker(seat), task.status)

    def _judge(self, seat: _Seat, state: str, status: int, lines: Sequence[str]) -> None:
        """Decide whether the seat of a failed worker is queued again."""
        worker = self._worker(seat)
        out_of_time = ends.is_out_of_time(state, status)
        made_progress = got_on(self._beat(seat) or {})
        if state in ends.NOT_ITS_FAULT or (out_of_time and made_progress):
            self._ledger.excuse(worker)
            seat.waits = True
            return
        ends.refuse_without_log(status, self._logs)
        failed = self._deaths.judge(seat.number, worker, status, lines)
        seat.waits = failed is None
        if failed is not None:
            # Other workers may finish without this seat; if none is left, this error is raised.
            self._given_up.add(seat.number)
            self._failed = ends.explain(seat.number, state, status, failed)

    def _end_stuck(self) -> None:
        """Replace workers that send no heartbeat or make no progress."""
        now = time.time()
        running = [s for s in self._seats if s.job and s.running_since and now - s.running_since > self._stuck_s]
        for seat in running:
            since = {"at": seat.running_since, "progress_at": seat.running_since, "state": "starting"}
            beat = self._beat(seat) or since
            if (idle := idle_s(beat, now)) > self._stuck_s:
                commands.cancel(f"{seat.job}_{seat.index}")
                lines = [*last_lines(self._logs, seat.job, seat.index), f"no progress for {idle:.0f} s: cancelled"]
                self._judge(seat, "", -signal.SIGKILL, lines)
                seat.job = 0

    def _follow(self) -> None:
        """Have as many tasks as are wanted for the run's deadline, as far as there are seats."""
        log = self._ledger.staff.look() if self._acts else None
        if log is None or log.now is None or log.now.ends or self._deaths.all_done():
            return
        filled = [seat for seat in self._seats if seat.job or seat.waits]
        free = [seat for seat in self._seats if seat not in filled and seat.number not in self._given_up]
        for seat in free[: max(0, log.now.wanted - len(filled))]:
            seat.waits = True
        for seat in filled[max(1, log.now.wanted) :]:
            seat.waits = False
            if seat.job:
                commands.cancel(f"{seat.job}_{seat.index}")

    def _end_leftover(self) -> None:
        """Once the run is complete, cancel pending tasks, and running ones after a short delay."""
        if not any(s.job for s in self._seats) or not self._deaths.all_done():
            return
        with contextlib.suppress(EngineSilent):
            if not self._done_since:
                self._done_since = time.monotonic()
                commands.cancel("--state=PENDING", *map(str, sorted({s.job for s in self._seats if s.job})))
            elif time.monotonic() - self._done_since > 2 * _LOOK_S:
                self.stop()

    # queueing

    def _queue(self) -> None:
        """Queue one array for all waiting seats, or several if it exceeds Slurm's array size."""
        self._refused = None
        waiting = defaultdict(list)
        for seat in self._seats:
            if seat.waits and not seat.job:
                waiting[seat.number // self._array_size * self._array_size].append(seat)
        for offset, seats in waiting.items():
            script = make_script(self._run, self._options, self._kind, offset, len(self._seats))
            try:
                job = commands.submit(self._flags(offset, seats), script)
            except (EngineRefused, EngineSilent) as error:
                if not any(s.job for s in self._seats):
                    raise
                self._refused = error
                return
            for seat in seats:
                self._sit(seat, job, seat.number - offset)

    def _flags(self, offset: int, seats: Sequence[_Seat]) -> list[str]:
        limit = f"%{self._options.array_limit}" if self._options.array_limit else ""
        return [
            f"--job-name={self._job_name(offset)}",
            f"--array={format_cpus(s.number - offset for s in seats)}{limit}",
            "--nodes=1",
            "--ntasks=1",
            "--requeue",
            f"--signal=B:USR1@{self._options.signal_s}",
            f"--output={str(self._logs).replace('%', '%%')}/slurm-%A_%a.log",
            "--open-mode=append",
            *self._options.flags(),
        ]

    def _sit(self, seat: _Seat, job: int, index: int) -> None:
        seat.job, seat.index, seat.seen, seat.waits, seat.running_since = job, index, None, False, 0.0
        self._changed_at = seat.queued_at = time.monotonic()

    def _names(self) -> list[str]:
        return [self._job_name(offset) for offset in range(0, len(self._seats), self._array_size)]

    def _job_name(self, offset: int) -> str:
        return f"{self._name}.{offset}" if offset else self._name

    def _offset_of(self, task: ArrayTask) -> int:
        return int(task.name.removeprefix(self._name).removeprefix(".") or 0)

    # what workers reported

    def _excuse(self, seat: _Seat) -> None:
        """Excuse the worker of a task that Slurm queued again: its node failed, or others had priority."""
        if worker := self._worker(seat):
            self._ledger.excuse(worker)

    def _worker(self, seat: _Seat) -> str:
        """The name of a seat's worker, from its heartbeat, as it contains the node's name; "" without one."""
        return str((self._beat(seat) or {"id": ""})["id"])

    def _beat(self, seat: _Seat) -> dict[str, Any] | None:
        """The heartbeat of a seat's worker; heartbeats are read once per poll."""
        if self._beats is None:
            self._beats = self._ledger.workers.read()
        return next((b for b in self._beats if b["id"].endswith(seat.ending)), None)

    def _note(self, line: str) -> None:
        """Store the line for people who watch; no run ends because of it."""
        with contextlib.suppress(StoreError):
            self._ledger.notes.put_placement(line)

    def _say(self, line: str) -> None:
        now = time.monotonic()
        if line != self._line or now - self._said_at > _SAY_AGAIN_S:
            self._line, self._said_at = line, now
            self._note(line)
