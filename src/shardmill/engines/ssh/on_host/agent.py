"""Home's agent on a host: `python -m shardmill.engines.ssh.on_host.agent` answers each line of JSON with another.

It lives as long as the connection and keeps its state in the work folder. Secrets are passed to workers in their
environment and never written to disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardmill.core.devices import Device, place_workers
from shardmill.core.errors import EXIT_TRY_AGAIN, HostError, ShardmillError, WorkerFailed
from shardmill.core.ranges import Range, join, subtract
from shardmill.engines.deaths import Deaths
from shardmill.engines.process import name_worker, worker_environment
from shardmill.engines.ssh.on_host.seats import Seat, end, wait
from shardmill.engines.stuck import find_stuck
from shardmill.ledger import Assignment, Ledger, name_person
from shardmill.store import LocalStore

_END_S, _STOP_S = 2.0, 10.0
_READ_BYTES = 1 << 20
_SPARE_BYTES = 64 << 20


class Agent:
    def __init__(self) -> None:
        self._seats: list[Seat] = []
        self._told: set[int] = set()
        self._failed: WorkerFailed | None = None

    # files that home sends

    def covered(self, path: str, size: int, more_bytes: int) -> dict[str, Any]:
        """The ranges of a copy that are here and verified. Checks that the disk has room for the rest."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(file.parent).free
        if not file.exists() or file.stat().st_size != size:
            _beside(file).unlink(missing_ok=True)
        ranges = _read_ranges(file)
        needed = min(more_bytes, sum(b - a for a, b in subtract([(0, size)], ranges)))
        if needed and free < needed + min(_SPARE_BYTES, needed):
            raise HostError(
                f"{file.parent} has {free >> 20:,} MiB free, but {needed >> 20:,} MiB are needed.",
                hint="Free some space there, or name another folder: work = …",
            )
        with open(file, "ab") as handle:
            if handle.tell() != size:
                handle.truncate(size)
        return {"ranges": ranges}

    def cover(self, path: str, ranges: Sequence[tuple[int, int, str]]) -> dict[str, Any]:
        """Verify ranges that were sent; returns those whose digest is wrong, so that home sends them again."""
        file = Path(path)
        bad: list[Range] = []
        good: list[Range] = []
        with open(file, "rb") as handle:
            for start, stop, wanted in ranges:
                (good if _digest(handle, start, stop) == wanted else bad).append((start, stop))
            os.fsync(handle.fileno())
        known = join([*_read_ranges(file), *good])
        staged = _beside(file).with_suffix(".partial")
        staged.write_text(json.dumps(known))
        os.replace(staged, _beside(file))
        return {"bad": bad}

    def keep(self, folder: str, records: Mapping[str, str]) -> dict[str, Any]:
        """Write small files of a run, such as the records of its edition before."""
        for key, text in records.items():
            LocalStore(Path(folder)).put(key, text.encode())
        return {}

    # a run

    def open(
        self,
        folder: str,
        run: str,
        host: str,
        plan: str | None,
        execution: dict[str, Any],
        gpus: str | int | list[int],
        workers: int | None,
        environment: dict[str, str],
    ) -> dict[str, Any]:
        """Get ready for a run in `folder`, as a branch if a plan is given; workers already running stay."""
        self._run, self._host, self._environment = run, host, environment
        os.environ.update(environment)
        self._ledger = Ledger(run)
        self._is_branch = plan is not None
        if plan is not None:
            self._ledger.store.put("plan.json", plan.encode())
            self._ledger.find_plan()
            self._ledger.put_execution(execution)
            self._ledger.state.want(name_person())
        self._shards = len(self._ledger.plan().shards)
        self._stuck_s = float(execution["stuck_s"])
        devices = _devices(gpus, workers, execution["device"])
        restarts = int(execution["max_restarts"])
        self._deaths = Deaths(self._ledger, restarts, seats=len(devices), one_machine=True)
        self._seats = [Seat(Path(folder), number, device) for number, device in enumerate(devices)]
        for seat in self._seats:
            if not seat.is_taken():
                seat.take_end()
        return {"devices": [asdict(device) for device in devices], "clock": time.time()}

    def round(
        self,
        hand: Sequence[int] | None,
        patience_s: float,
        forget: Sequence[int],
        trials: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Take the new assignment, drop commits that home has, restart or end workers, and return what is new.

        Before the new shards of a study, `trials` has what they try, and the trials that have ended.
        """
        if trials is not None:
            self._ledger.trials.send(trials["ended"], {int(shard): each for shard, each in trials["starts"].items()})
        if hand is not None:
            self._ledger.branch.assign(Assignment(tuple(hand), time.time() + patience_s))
        self._ledger.commits.delete(forget)
        self._told.difference_update(forget)
        done = self._ledger.commits.shards()
        self._tend(not done.issuperset(range(self._shards) if hand is None else hand))
        commits = self._ledger.commits.read() if self._is_branch else {}
        new = [asdict(commits[shard]) for shard in sorted(commits.keys() - self._told)]
        self._told.update(commits)
        return {
            "commits": new,
            "begun": list(self._ledger.leases.shards()) if self._is_branch else [],
            "beats": self._ledger.workers.read() if self._is_branch else [],
            "at_work": sum(seat.is_taken() for seat in self._seats),
            "clock": time.time(),
        }

    def stop(self) -> dict[str, Any]:
        """End the workers. What they finished stays until home fetches it."""
        end(self._seats, _STOP_S)
        for seat in self._seats:
            seat.take_end()
        return {}

    def finish(self, folder: str) -> dict[str, Any]:
        """The run is complete: let the workers end, then remove all files of the run except logs."""
        if self._is_branch:
            self._ledger.branch.assign(Assignment((), 0.0))
        wait(self._seats, _END_S)
        self.stop()
        for entry in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if entry.name != "logs":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        return {}

    def _tend(self, wanted: bool) -> None:
        """Fill empty seats if work is left, and end workers that make no progress."""
        self._end_stuck()
        resting = 0
        for seat in self._seats:
            if seat.is_taken():
                continue
            ended = seat.take_end()
            if ended is not None and ended.status == EXIT_TRY_AGAIN and wanted:
                raise HostError("its workers were told to stop.", hint="Run the same command again: it resumes.")
            if ended is not None and not self._deaths.is_peaceful(ended.worker, ended.status):
                failed = self._deaths.judge(seat.number, ended.worker, ended.status, ended.lines)
                if failed is not None:
                    self._failed = failed
                    seat.failed = True
            resting += seat.failed
            if wanted and not seat.failed:
                self._place(seat)
        if self._failed is not None and resting == len(self._seats):
            raise self._failed

    def _place(self, seat: Seat) -> None:
        worker = name_worker(seat.number, self._host)
        slot = seat.number / len(self._seats)
        environment = {**worker_environment(worker, seat.device, slot), **self._environment}
        seat.start(self._run, worker, environment)

    def _end_stuck(self) -> None:
        placed = {seat.worker: seat.placed_at for seat in self._seats if seat.is_taken()}
        stuck = find_stuck(self._ledger, placed, self._stuck_s)
        for seat in self._seats:
            if seat.is_taken() and seat.worker in stuck:
                seat.signal(signal.SIGKILL)


def _devices(gpus: str | int | list[int], workers: int | None, kind: str) -> list[Device]:
    if gpus == 0 or kind == "cpu":
        return place_workers("cpu", workers)
    if gpus == "auto":
        return place_workers(kind, workers)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus) if isinstance(gpus, int) else gpus))
    return place_workers("cuda", workers)


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.ranges")


def _read_ranges(file: Path) -> list[Range]:
    try:
        return [(start, stop) for start, stop in json.loads(_beside(file).read_text())]
    except (FileNotFoundError, ValueError):
        return []


def _digest(handle: Any, start: int, stop: int) -> str:
    digest = hashlib.sha256()
    handle.seek(start)
    while start < stop and (data := handle.read(min(_READ_BYTES, stop - start))):
        digest.update(data)
        start += len(data)
    return digest.hexdigest()


def _answer(agent: Agent, asked: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(asked)
    try:
        answer: dict[str, Any] = getattr(agent, given.pop("do"))(**given)
        return answer
    except ShardmillError as error:
        return {"failed": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
    except OSError as error:
        return {"failed": {"kind": "HostError", "message": f"{error.filename or ''}: {error.strerror}.", "hint": ""}}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # Output that a library prints must not be read as an answer.
    os.dup2(2, 1)
    agent = Agent()
    for line in sys.stdin:
        print(json.dumps(_answer(agent, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
