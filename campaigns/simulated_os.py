"""Simulated processes: threads, queues, clocks, signals and names, in the shape of the modules that our code imports.

Real code runs in them unchanged. `Machines.patches` lists which name of which module is replaced.
"""

from __future__ import annotations

import math
import os
import queue
import random
import signal
import subprocess
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from campaigns.simulated import Killed, Turn, Turns

EPOCH = 1_700_000_000.0
# A worker that was told to stop ends after this time, as `worker/__main__.py` sees to.
END_S = 8.0


class Process:
    """A process on a host, whose clock is off by the host's skew. It ends with its main thread, or when killed."""

    def __init__(self, machines: Machines, pid: int, host: str, parent: Process | None, name: str) -> None:
        self.machines, self.pid, self.host, self.parent, self.name = machines, pid, host, parent, name
        self.killed, self.frozen_until = False, 0.0
        # At its next write that decides something it falls asleep until this time; after so many of them it dies.
        self.drowsy_until, self.writes_left = 0.0, math.inf
        self.status: int | None = None
        self.threads: list[Turn] = []
        self.ended = Event(machines.turns)
        self.on_term: Callable[[], None] | None = None
        self.lines: list[str] = []
        self.error: Exception | None = None

    def start(self, main: Callable[[], int]) -> Process:
        self.spawn(lambda: self.end(main()))
        return self

    def spawn(self, body: Callable[[], None]) -> Turn:
        turn = self.machines.turns.spawn(body, self)
        self.threads.append(turn)
        return turn

    def end(self, status: int) -> None:
        """End all threads at once, as when the main thread returns or a signal kills the process."""
        if self.status is None:
            self.status, self.killed = status, True
            for turn in self.threads:
                if turn is not self.machines.turns.current:
                    self.machines.turns.wake(turn)
            self.ended.set()

    def signal(self, number: int) -> None:
        if self.status is not None:
            raise ProcessLookupError
        self.machines.note(self, signal.Signals(number).name)
        if number == signal.SIGTERM and self.on_term is not None:
            self.spawn(self.on_term)
            self.machines.turns.at(self.machines.turns.now + END_S, lambda: self.end(75))
        else:
            self.end(-number)


class Machines:
    """All processes and hosts of one simulation. `note` hears of what happens."""

    def __init__(self, turns: Turns, note: Callable[[Process | None, str], None]) -> None:
        self.turns, self.note = turns, note
        self.processes: dict[int, Process] = {}
        self.skew_s: dict[str, float] = {}

    @property
    def here(self) -> Process | None:
        """The process that runs now; None outside of all."""
        turn = self.turns.current
        return turn.owner if turn is not None else None  # type: ignore[return-value]

    def process(self, host: str, name: str, parent: Process | None = None) -> Process:
        pid = 1000 + len(self.processes)
        self.processes[pid] = Process(self, pid, host, parent, f"{name}-{pid}")
        return self.processes[pid]

    def living(self) -> list[Process]:
        return [p for p in self.processes.values() if p.status is None]

    # what the modules of the standard library offer

    def time(self) -> float:
        """The clock on the wall of this host."""
        here = self.here
        return EPOCH + self.turns.now + (self.skew_s.get(here.host, 0.0) if here else 0.0)

    def monotonic(self) -> float:
        return self.turns.now

    def sleep(self, seconds: float) -> None:
        if self.turns.current is not None:
            self.turns.pause(self.turns.now + seconds)

    def name_process(self) -> str:
        here = self.here
        return f"{here.host} boot pids {here.pid}" if here else "nowhere boot pids 0"

    def process_alive(self, name: str, pid: int) -> bool | None:
        here, host = self.here, name.partition(" ")[0]
        if here is not None and host != here.host:
            return None
        return pid in self.processes and self.processes[pid].status is None

    def getpid(self) -> int:
        return self.here.pid if self.here else 0

    def getppid(self) -> int:
        parent = self.here.parent if self.here else None
        return parent.pid if parent is not None and parent.status is None else 1

    def kill(self, pid: int, number: int) -> None:
        self._end_if_killed()
        self.processes[pid].signal(number)
        self._end_if_killed()

    def _end_if_killed(self) -> None:
        """A dead process sends no signals, and one that kills itself does nothing after."""
        if self.here is not None and self.here.killed:
            raise Killed

    @property
    def os(self) -> Any:
        own = {"getpid": self.getpid, "getppid": self.getppid, "kill": self.kill, "killpg": self.kill, "environ": {}}
        return _Like(os, own)

    @property
    def clocks(self) -> Any:
        names = dict.fromkeys(("monotonic", "perf_counter", "process_time"), self.monotonic)
        return SimpleNamespace(time=self.time, sleep=self.sleep, **names)

    @property
    def threading(self) -> Any:
        turns = self.turns
        return SimpleNamespace(
            Event=lambda: Event(turns),
            Semaphore=lambda value: Semaphore(turns, value),
            Lock=lambda: Semaphore(turns, 1),
            Thread=lambda **call: Thread(self, **call),
        )

    @property
    def queue(self) -> Any:
        return SimpleNamespace(Queue=lambda size: Queue(self.turns, size), Full=queue.Full, Empty=queue.Empty)

    def subprocess(self, work: Callable[[Process, str, dict[str, str]], int]) -> Any:
        """`Popen` starts a worker on the host of the caller: `work` is its main function."""

        def popen(command: list[str], *, env: dict[str, str], **_: Any) -> Popen:
            here = self.here
            assert here is not None
            process = self.process(here.host, "worker", here)
            return Popen(process.start(lambda: work(process, command[-1], env)))

        names = ("PIPE", "STDOUT", "DEVNULL", "TimeoutExpired")
        return SimpleNamespace(Popen=popen, **{name: getattr(subprocess, name) for name in names})


class _Like:
    """A module with some names replaced."""

    def __init__(self, module: Any, own: dict[str, Any]) -> None:
        self.__dict__.update(own, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class SeededUuid:
    @staticmethod
    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=random.getrandbits(128), version=4)


class SerialPool:
    """A pool that does the work in the calling thread."""

    def __init__(self, threads: int, name: str = "") -> None:
        pass

    def __enter__(self) -> SerialPool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    map = staticmethod(map)

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given))
        return done


class NoBar:
    """A progress bar that shows nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def at(self, share: float, note: str = "") -> None:
        pass

    def count(self, done: int, total: int, unit: str) -> None:
        pass


class Nowhere:
    """A stream that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


class _Waited:
    """What threads can wait for."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: list[Turn] = []

    def _wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        turns = self._turns
        until = math.inf if timeout is None else turns.now + timeout
        while not ready():
            if turns.now >= until:
                return False
            me = turns.current
            assert me is not None
            self._waiting.append(me)
            try:
                turns.pause(until)
            finally:
                self._waiting.remove(me)
        return True

    def _notify(self) -> None:
        for turn in self._waiting:
            self._turns.wake(turn)


class Event(_Waited):
    def __init__(self, turns: Turns) -> None:
        super().__init__(turns)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._notify()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._wait(self.is_set, timeout)


class Semaphore(_Waited):
    """Also a lock, if its value is 1."""

    def __init__(self, turns: Turns, value: int) -> None:
        super().__init__(turns)
        self._value = value

    def acquire(self, timeout: float | None = None) -> bool:
        if not self._wait(lambda: self._value > 0, timeout):
            return False
        self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1
        self._notify()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Queue(_Waited):
    def __init__(self, turns: Turns, size: int) -> None:
        super().__init__(turns)
        self._size, self._items = size, deque[Any]()

    def put(self, item: Any, timeout: float | None = None) -> None:
        if not self._wait(lambda: len(self._items) < self._size, timeout):
            raise queue.Full
        self._items.append(item)
        self._notify()

    def get(self, timeout: float | None = None) -> Any:
        if not self._wait(lambda: bool(self._items), timeout):
            raise queue.Empty
        self._notify()
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(0.0)

    def empty(self) -> bool:
        return not self._items


class Thread:
    def __init__(
        self, machines: Machines, target: Callable[..., None], args: tuple[Any, ...] = (), name: str = "", **_: Any
    ) -> None:
        self._machines, self._target, self._args = machines, target, args
        self._ended = Event(machines.turns)

    def start(self) -> None:
        here = self._machines.here
        assert here is not None
        here.spawn(self._run)

    def _run(self) -> None:
        try:
            self._target(*self._args)
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)


class Popen:
    """A worker as its parent sees it; its output is read at its end."""

    def __init__(self, process: Process) -> None:
        self._process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self._process.status

    def wait(self, timeout: float | None = None) -> int:
        if not self._process.ended.wait(timeout):
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        assert self._process.status is not None
        return self._process.status

    @property
    def stdout(self) -> Iterator[bytes]:
        self._process.ended.wait()
        for line in self._process.lines:
            yield f"{line}\n".encode()
