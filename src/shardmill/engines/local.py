"""Workers on this machine: one or more per GPU, or shares of the CPU. Dead workers are restarted, stuck ones killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from shardmill.core.devices import Device
from shardmill.core.errors import StoreError, WorkerFailed
from shardmill.engines.adopted import Adopted, find_left
from shardmill.engines.deaths import Deaths, failure
from shardmill.engines.process import MODULE, name_worker, worker_environment
from shardmill.engines.stuck import find_stuck
from shardmill.ledger import Ledger

_LOOK_EVERY_S = 5.0
_BEAT_LOOK_S = 0.1


@runtime_checkable
class Here(Protocol):
    """A worker in this process, with what is used of a `Popen`."""

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def signal(self, number: int) -> None: ...


# Starts a worker in this process: of a run, with a name, on a device; its last lines go where the engine looks.
StartHere = Callable[[str, str, Device, deque[str]], Here]


@dataclass(slots=True)
class _Seat:
    """One place for a worker; the process in it may change. An adopted worker beyond the devices has no device."""

    number: int
    device: Device | None
    process: subprocess.Popen[bytes] | Adopted | Here | None = None
    worker: str = ""
    placed_at: float = 0.0
    listener: threading.Thread | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))


class LocalEngine:
    """Places workers in processes of their own; with `here`, the first in this process."""

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        max_restarts: int = 3,
        stuck_s: float = 900.0,
        detached: bool = False,
        here: StartHere | None = None,
    ) -> None:
        self.devices = devices
        self.max_restarts = max_restarts
        self.stuck_s = stuck_s
        self.detached = detached
        self.here = here

    def start(self, run: str) -> LocalPlacement:
        placement = LocalPlacement(run, self.devices, self.max_restarts, self.stuck_s, self.detached, self.here)
        placement.start()
        return placement


class LocalPlacement:
    def __init__(
        self,
        run: str,
        devices: Sequence[Device],
        max_restarts: int,
        stuck_s: float,
        detached: bool = False,
        here: StartHere | None = None,
    ) -> None:
        self._run = run
        self._ledger = Ledger(run)
        self._deaths = Deaths(self._ledger, max_restarts, seats=len(devices), one_machine=True)
        self._seats = [_Seat(i, d) for i, d in enumerate(devices)]
        self._stuck_s, self._detached, self._here = stuck_s, detached, here
        self._looked_at = time.monotonic()
        self._failed: WorkerFailed | None = None
        self._nothing_left = False
        self._acts = bool(self._ledger.execution().get("acts"))
        self._lost: list[_Seat] = []

    def start(self) -> None:
        """Adopt the workers that an earlier process left here, and place one in every other seat."""
        for left in find_left(self._ledger):
            seat = self._seats[left.seat] if left.seat < len(self._seats) else None
            if seat is None or seat.process is not None:
                seat = _Seat(left.seat, None)
                self._seats.append(seat)
            seat.process, seat.worker, seat.placed_at = left, left.worker, left.started
        try:
            for seat in self._seats:
                if seat.process is None:
                    self._place(seat)
        except BaseException:
            self.stop()
            raise

    def detach(self) -> None:
        """Wait until each worker can be found by its heartbeat, or raise why one has ended before."""
        for seat in self._seats:
            while seat.process is not None and self._ledger.workers.find(seat.worker) is None:
                if (status := seat.process.poll()) is not None and not self._deaths.is_peaceful(seat.worker, status):
                    raise failure(seat.number, f"ended with status {status}", self._last_lines(seat))
                time.sleep(_BEAT_LOOK_S)

    def poll(self) -> bool:
        for seat in self._seats:
            if seat.process is not None and (status := seat.process.poll()) is not None:
                self._ended(seat, status)
        if time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._end_stuck()
            self._end_leftover()
            self._follow()
        working = any(s.process is not None for s in self._seats)
        if not working and self._failed is not None:
            raise self._failed
        return working

    def stop(self) -> None:
        running = [s for s in self._seats if s.process is not None]
        for seat in running:
            _signal(seat, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for seat in running:
            if seat.process is None:
                continue
            try:
                seat.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(seat, signal.SIGKILL)
                seat.process.wait()
                with contextlib.suppress(StoreError):
                    self._ledger.excuse(seat.worker)
            seat.process = None

    def _place(self, seat: _Seat) -> None:
        seat.worker = name_worker(seat.number)
        slot = seat.number / len(self._seats)
        assert seat.device is not None
        seat.lines.clear()
        if self._here is not None:
            # Whoever follows one that died has a process of its own.
            start, self._here = self._here, None
            seat.process, seat.placed_at = start(self._run, seat.worker, seat.device, seat.lines), time.time()
            return
        parent = None if self._detached else os.getpid()
        settings = worker_environment(seat.worker, seat.device, slot, parent, self._detached, _log_name(seat))
        with self._output(seat) as output:
            seat.process = process = subprocess.Popen(
                [sys.executable, "-m", MODULE, self._run],
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        seat.placed_at = time.time()
        if process.stdout is not None:
            seat.listener = threading.Thread(target=self._listen, args=(seat, process), daemon=True)
            seat.listener.start()

    @contextlib.contextmanager
    def _output(self, seat: _Seat) -> Iterator[int | IO[bytes]]:
        """Where a worker writes: to this process, or, if it is left on its own, to its log."""
        if not self._detached:
            yield subprocess.PIPE
        elif (path := self._log(seat)) is None:
            yield subprocess.DEVNULL
        else:
            with open(path, "ab") as log:
                yield log

    def _log(self, seat: _Seat) -> Path | None:
        return self._ledger.folder.log_path(_log_name(seat))

    def _last_lines(self, seat: _Seat) -> list[str]:
        if not self._detached and not isinstance(seat.process, Adopted):
            return list(seat.lines)
        path = self._log(seat)
        return path.read_text(errors="replace").splitlines()[-20:] if path is not None and path.exists() else []

    def _listen(self, seat: _Seat, process: subprocess.Popen[bytes]) -> None:
        """Keep the last lines of a worker's output, in memory and in its log; a bad disk must not hide them."""
        path = None
        with contextlib.suppress(StoreError):
            path = self._log(seat)
        assert process.stdout is not None
        for raw in process.stdout:
            seat.lines.append(raw.decode("utf-8", "replace").rstrip())
            if path is not None:
                try:
                    with open(path, "ab") as log:
                        log.write(raw)
                except OSError:
                    path = None

    def _ended(self, seat: _Seat, status: int) -> None:
        if self._deaths.is_peaceful(seat.worker, status):
            seat.process = None
            return
        if seat.listener is not None:
            seat.listener.join(1.0)
        failed = self._deaths.judge(seat.number, seat.worker, status, self._last_lines(seat))
        # Only now: after a store error, the next poll judges this death again.
        seat.process = None
        if failed is None and seat.device is not None:
            self._place(seat)
        elif failed is not None:
            # Other workers may finish without this seat; if none is left, this error is raised.
            self._failed = failed
            self._lost.append(seat)

    def _end_stuck(self) -> None:
        """Kill workers that send no heartbeat or make no progress; their shards go to others."""
        placed = {s.worker: s.placed_at for s in self._seats if s.process is not None}
        stuck = find_stuck(self._ledger, placed, self._stuck_s)
        for seat in self._seats:
            if seat.process is not None and seat.worker in stuck:
                seat.lines.append(f"no progress for {stuck[seat.worker]:.0f} s: killed")
                _signal(seat, signal.SIGKILL)

    def _follow(self) -> None:
        """Have as many workers as are wanted for the run's deadline, as far as there are seats."""
        log = self._ledger.staff.look() if self._acts else None
        if log is None or log.now is None or log.now.ends or self._nothing_left:
            return
        wanted, working = log.now.wanted, [s for s in self._seats if s.process is not None]
        free = [s for s in self._seats if s.process is None and s.device is not None and s not in self._lost]
        for seat in free[: max(0, wanted - len(working))]:
            self._place(seat)
        # They give back what they hold, and keep the rows that they have made.
        for seat in working[max(1, wanted) :]:
            _signal(seat, signal.SIGTERM)

    def _end_leftover(self) -> None:
        """Stop workers that still run although the run is complete, after giving them time to end by themselves."""
        if self._nothing_left:
            self.stop()
        self._nothing_left = self._deaths.all_done()


def _signal(seat: _Seat, number: int) -> None:
    if seat.process is None or seat.process.poll() is not None:
        return
    if isinstance(seat.process, Here):
        seat.process.signal(number)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(seat.process.pid, number)


def _log_name(seat: _Seat) -> str:
    return f"worker-{seat.number}"
