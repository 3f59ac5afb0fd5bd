"""Workers on a host, managed from the host. Each has its own session, so that it outlives the agent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core.devices import Device
from shardmill.core.errors import HostError
from shardmill.engines.process import MODULE
from shardmill.store.local import try_lock

# The shell stays to save the worker's exit status for a later agent.
_KEEP_STATUS = 'trap : TERM INT; "$@"; echo $? > "$0.partial"; mv "$0.partial" "$0"'
_LINES = 20
_TAIL_BYTES = 64 << 10
_SIGNALLED = 128


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended: its exit status, or minus the signal. Without a saved status it counts as SIGKILL."""

    worker: str
    status: int
    lines: list[str]


class Seat:
    """One place for a worker. It is taken while a process holds its lock, whichever agent started that process."""

    def __init__(self, folder: Path, number: int, device: Device) -> None:
        self.number, self.device = number, device
        seats, logs = folder / "seats", folder / "logs"
        for made in (seats, logs):
            made.mkdir(parents=True, exist_ok=True)
        self._lock, self._state, self._status = (seats / f"{number}.{kind}" for kind in ("lock", "json", "status"))
        self._log = logs / f"worker-{number}.log"
        self._child: subprocess.Popen[bytes] | None = None
        self.failed = False

    def start(self, run: str, worker: str, environment: Mapping[str, str]) -> None:
        """Start a worker here, unless one is running."""
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if self._try_lock(lock):
                self._status.unlink(missing_ok=True)
                with open(self._log, "ab") as log:
                    began = log.tell()
                    self._child = subprocess.Popen(
                        ["/bin/sh", "-c", _KEEP_STATUS, str(self._status), sys.executable, "-m", MODULE, run],
                        env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        pass_fds=[lock],
                    )
                state = {"pid": self._child.pid, "worker": worker, "log_at": began, "at": time.time()}
                self._state.write_text(json.dumps(state))
        finally:
            os.close(lock)

    def is_taken(self) -> bool:
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        try:
            with open(self._lock, "rb+") as file:
                return not self._try_lock(file.fileno())
        except FileNotFoundError:
            return False

    def _try_lock(self, file: int) -> bool:
        locked = try_lock(file)
        if locked is None:
            raise HostError(
                f"{self._lock}: this mount has no file locks, which tell whether a worker is running.",
                hint="Name a folder on a local disk of the host: work = …",
            )
        return locked

    @property
    def worker(self) -> str:
        return str(self._read().get("worker", ""))

    @property
    def placed_at(self) -> float:
        return float(self._read().get("at", 0.0))

    def take_end(self) -> Ended | None:
        """How the last worker here ended; returned only once."""
        state = self._read()
        if not state:
            return None
        status = -int(signal.SIGKILL)
        with contextlib.suppress(FileNotFoundError, ValueError):
            status = int(self._status.read_text())
        lines = self._last_lines(int(state["log_at"]))
        self._state.unlink(missing_ok=True)
        return Ended(str(state["worker"]), _SIGNALLED - status if status > _SIGNALLED else status, lines)

    def signal(self, number: int) -> None:
        if self.is_taken() and (pid := self._read().get("pid")):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), number)

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._state.read_text()))
        except (FileNotFoundError, ValueError):
            return {}

    def _last_lines(self, since: int) -> list[str]:
        with open(self._log, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(since, size - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace").splitlines()[-_LINES:]


def end(seats: list[Seat], patience_s: float) -> None:
    """Ask workers to end, and kill those that have not ended after `patience_s`."""
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        taken = [seat for seat in seats if seat.is_taken()]
        for seat in taken:
            seat.signal(number)
        wait(taken, wait_s)


def wait(seats: list[Seat], wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while any(seat.is_taken() for seat in seats) and time.monotonic() < deadline:
        time.sleep(0.05)
