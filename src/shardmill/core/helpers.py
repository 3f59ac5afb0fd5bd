"""Processes that help this one: Python work on all cores, and work that may crash, hang or eat memory.

A helper is a Python of its own that reads questions from its standard input and ends with it, at the latest when its
time for a question is over: it does not outlive the process that it helps for long. Nothing is forked, since that
process may hold threads, locks and a GPU.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import IO, Any, Self

from shardmill.core import passwords, permission
from shardmill.core.devices import cores
from shardmill.core.errors import ShardmillError

_OUT_OF_MEMORY = 77
_MARK = "SHARDMILL_HELPER"
# A worker needs cores for other things, too. A helper of another process has as many neighbours as there are cores.
_MOST = 8


def is_helper() -> bool:
    """Whether this process helps another."""
    return _MARK in os.environ


def helper_count() -> int:
    """How many helpers a process has for work that may end them."""
    return 1 if is_helper() else min(_MOST, cores())


class HelperLost(ShardmillError):
    """A helper ended or was ended while it worked, and `why`; the next question gets a new one."""

    def __init__(self, why: str) -> None:
        super().__init__(f"A process that helps this one {why}.")
        self.why = why


class Helpers:
    """Up to `count` processes, started when they are needed. Threads may call at the same time.

    `make`, as "module:function", is called once in each process with `given` and returns what answers its questions.
    An answer that takes longer than `seconds`, or a process that needs more than `memory_bytes`, costs a `HelperLost`.
    """

    def __init__(
        self,
        make: str,
        given: Any = None,
        count: int | None = None,
        *,
        seconds: float | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self._setup = pickle.dumps((make, given, seconds, memory_bytes))
        self._seconds = seconds
        self._idle: queue.LifoQueue[_Helper | None] = queue.LifoQueue()
        for _ in range(count or cores()):
            self._idle.put(None)
        self._living: set[_Helper] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def call(self, question: Any) -> Any:
        """The answer to a question; what the helper raises is raised here."""
        helper = self._idle.get()
        try:
            if helper is None:
                helper = self._start()
            good, answer = helper.ask(question, self._seconds)
            if self._closed:
                raise HelperLost("was ended")
        except BaseException:
            if helper is not None:
                self._end(helper)
                helper = None
            raise
        finally:
            self._idle.put(helper)
        if not good:
            raise answer
        return answer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            living = list(self._living)
        for helper in living:
            helper.kill()
        # Whoever still asks one reads the end of its pipe, and ends it.
        idle = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for each in idle:
            if each is not None:
                self._end(each)
            self._idle.put(None)

    def _start(self) -> _Helper:
        with self._lock:
            if self._closed:
                raise HelperLost("was ended")
            helper = _Helper(self._setup)
            self._living.add(helper)
        return helper

    def _end(self, helper: _Helper) -> None:
        with self._lock:
            self._living.discard(helper)
        helper.end()


class _Helper:
    def __init__(self, setup: bytes) -> None:
        environment = {**os.environ, **passwords.environment(), **permission.environment()}
        environment[_MARK] = "1"
        # What this process could import, its helper can too.
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shardmill.core.helpers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._in.write(setup)
            self._in.flush()
        self._is_ready = False

    def ask(self, question: Any, seconds: float | None) -> tuple[bool, Any]:
        try:
            if not self._is_ready:
                # Its start and its imports do not count against a question.
                self._is_ready = pickle.load(self._out)
            pickle.dump(question, self._in, pickle.HIGHEST_PROTOCOL)
            self._in.flush()
            # An answer comes in one piece, after the work: once it begins, the rest is only copied.
            if not select.select([self._out], [], [], seconds)[0]:
                raise HelperLost(f"took longer than {seconds:g} s")
            good, answer = pickle.load(self._out)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self._process.wait()
            raise HelperLost(_describe_end(self._process.returncode)) from None
        return good, answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """For the thread that asks it alone: pipes that another thread reads must not be closed."""
        self.kill()
        with contextlib.suppress(BrokenPipeError):
            self._in.close()
        self._out.close()


def _describe_end(status: int) -> str:
    if status == _OUT_OF_MEMORY:
        return "needed more memory than it may use"
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    make, given, seconds, memory_bytes = pickle.load(questions)
    if memory_bytes is not None:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    module, _, name = make.partition(":")
    answer_one: Callable[[Any], Any] = getattr(import_module(module), name)(given)
    pickle.dump(True, answers)
    answers.flush()
    while True:
        try:
            question = pickle.load(questions)
        except EOFError:
            return
        if seconds is not None:
            # Whoever asked may be gone: then nobody else ends a question that hangs.
            signal.alarm(int(seconds) + 5)
        try:
            answer = pickle.dumps((True, answer_one(question)), pickle.HIGHEST_PROTOCOL)
        except MemoryError:
            # What is left in the process is not known any more.
            os._exit(_OUT_OF_MEMORY)
        except Exception as error:
            answer = _pack(error)
        signal.alarm(0)
        answers.write(answer)
        answers.flush()


def _pack(error: Exception) -> bytes:
    try:
        packed = pickle.dumps((False, error))
        pickle.loads(packed)
    except Exception:
        return pickle.dumps((False, ShardmillError(f"{type(error).__name__}: {error}")))
    return packed


def _main() -> None:
    # What libraries print goes to standard error: standard output is for answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        _serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    from shardmill.core import helpers

    helpers._main()
