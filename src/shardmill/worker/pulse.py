"""The heartbeat of a worker: reports its state, renews leases, and notices when its parent is gone or it is stuck."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from shardmill.ledger import Ledger, idle_s
from shardmill.spec import Execution


class Pulse:
    """Runs on its own thread. A worker without progress does not renew its leases."""

    def __init__(
        self,
        ledger: Ledger,
        worker: str,
        execution: Execution,
        *,
        parent: int | None,
        rest_s: Callable[[], float],
        describe: Callable[[], dict[str, Any]],
        renew: Callable[[], None],
        orphaned: Callable[[], None],
        stuck: Callable[[float], None],
    ) -> None:
        self._ledger, self._worker, self._execution = ledger, worker, execution
        self._parent, self._rest_s = parent, rest_s
        self._describe, self._renew, self._orphaned, self._stuck = describe, renew, orphaned, stuck
        self._beating = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)
        self.progress_at = time.time()

    def start(self) -> None:
        self.beat()
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def progress(self) -> None:
        self.progress_at = time.time()

    def beat(self) -> None:
        """Report the state, from any thread; the last report has the latest state."""
        with self._beating:
            self._ledger.workers.beat(self._worker, self._state())

    def _state(self) -> dict[str, Any]:
        return {**self._describe(), "progress_at": self.progress_at}

    def _beat_on(self) -> None:
        lease_s, stuck_s = self._execution.lease_s, self._execution.stuck_s
        renewed = time.time()
        while not self._ended.wait(self._rest_s()):
            if self._parent is not None and os.getppid() != self._parent:
                self._orphaned()
            quietly(self._notice_the_end)
            quietly(self.beat)
            now = time.time()
            if (idle := idle_s({"at": now, **self._state()}, now)) >= stuck_s:
                self._stuck(idle)
            if now - renewed >= lease_s / 4 and now - self.progress_at < stuck_s:
                renewed = now
                self._renew()

    def _notice_the_end(self) -> None:
        if not self._ledger.state.is_wanted():
            self._orphaned()


def quietly(action: Callable[..., object], *args: Any) -> None:
    """Call an action whose failure does not matter, and print its error. A broken store fails elsewhere too."""
    try:
        action(*args)
    except Exception as error:
        with contextlib.suppress(OSError):
            print(f"{getattr(action, '__name__', 'a hint')}: {error}", file=sys.stderr)
