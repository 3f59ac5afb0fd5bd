"""Workers on this machine: one a GPU, or shares of the CPU; dead ones are restarted, stuck ones are found out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardmill import passwords
from shardmill.devices import Device, format_cpus
from shardmill.errors import EXIT_DONE, EXIT_FINAL, EXIT_TRY_AGAIN, WORKER_FAILED, StoreError, WorkerFailed
from shardmill.ledger import Ledger

_LOOK_EVERY_S = 5.0
_WIDEST = (1 << 62, 0)


@dataclass(slots=True)
class _Seat:
    """One place for a worker; the process in it may change."""

    number: int
    device: Device
    process: subprocess.Popen[bytes] | None = None
    worker: str = ""
    placed_at: float = 0.0
    deaths: int = 0
    listener: threading.Thread | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))


class LocalEngine:
    def __init__(self, devices: Sequence[Device], *, max_restarts: int = 3, stuck_s: float = 900.0) -> None:
        self.devices = devices
        self.max_restarts = max_restarts
        self.stuck_s = stuck_s

    def start(self, run: str) -> LocalPlacement:
        placement = LocalPlacement(run, self.devices, self.max_restarts, self.stuck_s)
        placement.start()
        return placement


class LocalPlacement:
    def __init__(self, run: str, devices: Sequence[Device], max_restarts: int, stuck_s: float) -> None:
        self._run = run
        self._ledger = Ledger(run)
        self._shards = len(self._ledger.plan().shards)
        self._seats = [_Seat(i, d) for i, d in enumerate(devices)]
        self._max_restarts = max_restarts
        self._stuck_s = stuck_s
        self._looked_at = time.monotonic()
        self._convicted = 0
        self._narrowest = _WIDEST
        self._failed: WorkerFailed | None = None
        self._nothing_left = False

    def start(self) -> None:
        try:
            for seat in self._seats:
                self._place(seat)
        except BaseException:
            self.stop()
            raise

    def poll(self) -> bool:
        for seat in self._seats:
            if seat.process is not None and (status := seat.process.poll()) is not None:
                self._ended(seat, status)
        if time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._end_stuck()
            self._end_vain()
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
                    self._ledger.bury(seat.worker)
            seat.process = None

    def _place(self, seat: _Seat) -> None:
        seat.worker = f"{socket.gethostname()}-{seat.number}-{uuid.uuid4().hex[:6]}"
        environment = {
            **os.environ,
            **passwords.environment(),
            "SHARDMILL_WORKER": seat.worker,
            "SHARDMILL_DEVICE": seat.device.kind,
            "SHARDMILL_DEVICE_NAME": seat.device.name,
            "SHARDMILL_THREADS": str(seat.device.threads),
            "SHARDMILL_SHARING": str(seat.device.sharing),
            "SHARDMILL_CPUS": format_cpus(seat.device.cpus),
            "SHARDMILL_SLOT": str(seat.number / len(self._seats)),
            "SHARDMILL_PARENT": str(os.getpid()),
            "OMP_NUM_THREADS": str(seat.device.threads),
            "OPENBLAS_NUM_THREADS": str(seat.device.threads),
            "MKL_NUM_THREADS": str(seat.device.threads),
            "RAYON_NUM_THREADS": str(seat.device.threads),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": seat.device.visible,
            "PYTHONUNBUFFERED": "1",
        }
        seat.process = subprocess.Popen(
            [sys.executable, "-m", "shardmill.worker", self._run],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        seat.placed_at = time.time()
        seat.lines.clear()
        seat.listener = threading.Thread(target=self._listen, args=(seat, seat.process), daemon=True)
        seat.listener.start()

    def _listen(self, seat: _Seat, process: subprocess.Popen[bytes]) -> None:
        """Keep the last lines a worker said, here and in its log; a full disk must not hide them."""
        path = self._ledger.log_path(f"worker-{seat.number}")
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
        seat.process = None
        if status in (EXIT_DONE, EXIT_TRY_AGAIN) or self._all_done():
            return
        if seat.listener is not None:
            seat.listener.join(1.0)
        self._ledger.bury(seat.worker)
        if status == EXIT_FINAL:
            raise self._failure(seat, "stopped")
        seat.deaths = 1 if self._came_forward(seat.worker) else seat.deaths + 1
        if seat.deaths > self._max_restarts:
            # The others may finish without this seat; if none is left, this is why.
            self._failed = self._failure(seat, f"died {seat.deaths} times in a row ({_say(status)})")
        else:
            self._place(seat)

    def _all_done(self) -> bool:
        """A library may crash as its process ends; what is committed stays committed."""
        return len(self._ledger.done()) >= self._shards

    def _came_forward(self, worker: str) -> bool:
        """Whether a dead worker left less to do: a shard done, a row convicted of killing workers, or fewer rows under
        that suspicion than ever before. Each can happen only so often."""
        suspects = [self._ledger.suspects(shard) for shard in self._ledger.leases()]
        convicted = sum(len(s.poison) for s in suspects)
        narrowest = min(((len(s.rows), -s.strikes) for s in suspects if s.rows), default=_WIDEST)
        if convicted > self._convicted:
            self._convicted, self._narrowest = convicted, narrowest
            return True
        if narrowest < self._narrowest:
            self._narrowest = narrowest
            return True
        return any(b["commits"] for b in self._ledger.workers() if b["id"] == worker)

    def _failure(self, seat: _Seat, what: str) -> WorkerFailed:
        for line in reversed(seat.lines):
            if line.startswith(WORKER_FAILED):
                said = json.loads(line.removeprefix(WORKER_FAILED))
                return WorkerFailed(said["message"], hint=said["hint"])
        if not seat.lines:
            return WorkerFailed(
                f"Worker {seat.number} {what} and said nothing.",
                hint="SIGKILL is often the system out of memory: try fewer --workers. What is done is kept.",
            )
        last = "\n".join(f"  {line}" for line in list(seat.lines)[-8:])
        return WorkerFailed(f"Worker {seat.number} {what}; its last lines:\n{last}", hint="What is done is kept.")

    def _end_stuck(self) -> None:
        """Kill workers that do not beat, and those that beat but do not move; their shards go to others."""
        now = time.time()
        beats = {b["id"]: b for b in self._ledger.workers()}
        for seat in self._seats:
            if seat.process is None:
                continue
            beat = beats.get(seat.worker, {"at": seat.placed_at, "progress_at": seat.placed_at, "state": "starting"})
            silent_s, still_s = now - beat["at"], now - beat["progress_at"]
            busy = beat["state"] in ("starting", "loading") or beat.get("open")
            if silent_s > self._stuck_s or (busy and still_s > self._stuck_s):
                seat.lines.append(f"no progress for {max(silent_s, still_s):.0f} s: killed")
                _signal(seat, signal.SIGKILL)

    def _end_vain(self) -> None:
        """Stop those who are still at a shard that a faster one committed; first they may end by themselves."""
        if self._nothing_left:
            self.stop()
        self._nothing_left = self._all_done()


def _signal(seat: _Seat, number: int) -> None:
    if seat.process is not None and seat.process.poll() is None:
        os.killpg(seat.process.pid, number)


def _say(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
