"""Workers on this machine that an earlier process placed and left on their own."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass

from shardmill.core.errors import EXIT_DONE, EXIT_TRY_AGAIN
from shardmill.ledger import ENDED, Ledger, process_alive

_ENDED = {"done": EXIT_DONE, "stopped": EXIT_TRY_AGAIN}
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Adopted:
    """A process that is not a child of this one, with what is used of a `Popen`. Its heartbeat says how it ended."""

    ledger: Ledger
    worker: str
    process: str
    pid: int
    started: float

    @property
    def seat(self) -> int:
        """The seat that it was placed in, from its name."""
        return int(self.worker.rsplit("-", 2)[1])

    def poll(self) -> int | None:
        if process_alive(self.process, self.pid):
            return None
        return end_of(self.ledger, self.worker)

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + timeout if timeout is not None else None
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(self.worker, timeout or 0.0)
            time.sleep(_LOOK_S)
        return status


def end_of(ledger: Ledger, worker: str) -> int:
    """The exit status of a worker that is gone, from its last heartbeat."""
    state = (ledger.workers.find(worker) or {}).get("state")
    return _ENDED.get(str(state), -signal.SIGKILL)


def find_left(ledger: Ledger) -> list[Adopted]:
    """The detached workers of a run that are alive on this machine, without those that are about to end."""
    return [
        Adopted(ledger, beat["id"], beat["process"], beat["pid"], beat["started"])
        for beat in ledger.workers.read()
        if beat.get("detached") and beat["state"] not in ENDED and process_alive(beat["process"], beat["pid"])
    ]
