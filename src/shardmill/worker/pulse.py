"""The heartbeat of a worker: reports its state, renews leases, and notices when its parent is gone or it is stuck."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from shardmill.ledger import History, HistoryPoint, Ledger, idle_s, view_every_s
from shardmill.plan import Plan
from shardmill.plan.spec import Execution
from shardmill.worker.staff import StaffDesk

# How often the history of a worker is written.
_HISTORY_EVERY_S = 120.0
# Whoever ends writes a view unless there is one of this age.
_JUST_NOW_S = 5.0
_COUNTS = ("rows", "bytes", "tokens", "tokens_out")


class Pulse:
    """Runs on its own thread. A worker without progress does not renew its leases."""

    def __init__(
        self,
        ledger: Ledger,
        worker: str,
        execution: Execution,
        *,
        plan: Plan,
        parent: int | None,
        rest_s: Callable[[], float],
        crowd: Callable[[], float],
        describe: Callable[[], dict[str, Any]],
        renew: Callable[[], None],
        orphaned: Callable[[], None],
        stuck: Callable[[float], None],
    ) -> None:
        self._ledger, self._worker, self._execution = ledger, worker, execution
        self._plan, self._parent, self._rest_s, self._crowd = plan, parent, rest_s, crowd
        self._describe, self._renew, self._orphaned, self._stuck = describe, renew, orphaned, stuck
        self._beating = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)
        self._viewer: threading.Thread | None = None
        # Home decides for its branches.
        acts = execution.acts and ledger.branch.assignment() is None
        self._desk = StaffDesk(ledger, plan, execution, worker) if acts else None
        self.progress_at = time.time()
        self._recorder = Recorder()
        self._said: dict[str, Any] = {}

    def start(self) -> None:
        if self._desk is not None:
            quietly(self._ledger.staff.look)
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
            self._said = {**self._describe(), "progress_at": self.progress_at}
            self._recorder.add(self._said)
            self._ledger.workers.beat(self._worker, self._said)

    def close(self) -> None:
        """The last report, with the whole history; one of the workers that end leaves a view of the run."""
        quietly(self.beat)
        if self._recorder.history.points:
            quietly(self._put_history)
        if self._ledger.overview.is_turn(len(self._plan.shards), self._crowd(), view_every_s(self._crowd())):
            quietly(self._put_view, _JUST_NOW_S)

    def _beat_on(self) -> None:
        lease_s, stuck_s = self._execution.lease_s, self._execution.stuck_s
        renewed = recorded = time.time()
        while not self._ended.wait(rest_s := self._rest_s()):
            if self._parent is not None and os.getppid() != self._parent:
                self._orphaned()
            quietly(self._notice_the_end)
            quietly(self.beat)
            if self._desk is not None:
                quietly(self._desk.look)
            now = time.time()
            if (idle := idle_s({**self._said, "at": now, "progress_at": self.progress_at}, now)) >= stuck_s:
                self._stuck(idle)
            if now - renewed >= lease_s / 4 and now - self.progress_at < stuck_s:
                renewed = now
                self._renew()
            if now - recorded >= _HISTORY_EVERY_S:
                recorded = now
                quietly(self._put_history)
            if self._ledger.overview.is_turn(len(self._plan.shards), self._crowd(), rest_s):
                self._view()

    def _notice_the_end(self) -> None:
        if not self._ledger.state.is_wanted():
            self._orphaned()

    def _put_history(self) -> None:
        self._ledger.history.put(self._worker, self._recorder.history)

    def _put_view(self, young_s: float | None = None) -> None:
        self._ledger.overview.write(self._plan, self._worker, self._crowd(), young_s=young_s)

    def _view(self) -> None:
        """Write the view on a thread of its own: it reads what all workers say."""
        if self._viewer is None or not self._viewer.is_alive():
            self._viewer = threading.Thread(target=quietly, args=(self._put_view,), name="view", daemon=True)
            self._viewer.start()


class Recorder:
    """Turns one heartbeat after another into a history."""

    def __init__(self) -> None:
        self.history = History()
        self._last: dict[str, Any] = {}
        self._at = time.time()

    def add(self, state: dict[str, Any]) -> None:
        now, last = time.time(), self._last
        if now <= self._at:
            return
        seen: dict[str, Any] = {name: state.get(name, 0) - last.get(name, 0) for name in _COUNTS}
        seen |= {"memory_bytes": state.get("rss_bytes"), "device_bytes": state.get("device_bytes")}
        self.history.add(HistoryPoint(now, now - self._at, **seen, use=state.get("use")))
        self._at, self._last = now, state


def quietly(action: Callable[..., object], *args: Any) -> None:
    """Call an action whose failure does not matter, and log its error. A broken store fails elsewhere too."""
    try:
        action(*args)
    except Exception as error:
        log(f"{getattr(action, '__name__', 'a hint')}: {error}")


def _print(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


# Workers that are no process of their own, the newest last; each takes out its own when it ends.
_logs: list[Callable[[str], object]] = []


def log(line: str) -> None:
    """Write a line to the log of this worker, which is the stderr of its process."""
    (_logs[-1:] or [_print])[0](line)


@contextlib.contextmanager
def logging_to(write: Callable[[str], object]) -> Iterator[None]:
    """Give the worker of a process that is not its own a log of its own."""
    _logs.append(write)
    try:
        yield
    finally:
        _logs.remove(write)
