"""Whatever tests start ends with the process that started it, also if that is killed.

Each process of pytest has a guard: a process of its own that waits for the end of its owner and then kills what is left
of all that the owner started. It finds them by a mark in their environment, which children inherit, also those that
leave their parent, as daemons do.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

MARK = "SHARDMILL_TESTS"
_GRACE_S = 2.0
_PATIENCE_S = 30.0
# They end by themselves as soon as their owner does, and are missed by it before.
_ITS_OWN = ("from multiprocessing.resource_tracker", "from multiprocessing.forkserver")


def post() -> Callable[[], str]:
    """Guard this process from now on; the answer ends what it left, and says what that was.

    A process of pytest that another one started has both marks: the guard of either ends what it starts.
    """
    mark = uuid.uuid4().hex
    # A signal to the group of its owner does not reach it.
    guard = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__)), mark, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    os.environ[MARK] = ":".join(filter(None, (os.environ.get(MARK), mark)))

    def dismiss() -> str:
        with contextlib.suppress(OSError, ValueError):
            return guard.communicate()[0].strip()
        return ""

    return dismiss


def shared_environment() -> dict[str, str]:
    """For what several processes of pytest share: it ends with the one that started them all."""
    return {**os.environ, MARK: os.environ.get(MARK, "").partition(":")[0]}


def kill_tree(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill a process and all below it: a program may be started by a small one that waits for it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for each in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def _left(mark: str, owner: int) -> Iterator[psutil.Process]:
    """All with the mark, and all below them: an environment may have been replaced on the way."""
    spared = {owner, os.getpid()}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid in spared or mark not in process.environ().get(MARK, ""):
                continue
            for each in [process, *process.children(recursive=True)]:
                if each.pid not in spared and each.status() != psutil.STATUS_ZOMBIE:
                    yield each


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[:120]
    return ""


def _kill_all(mark: str, owner: int) -> list[str]:
    """What was killed. What ends by itself within a moment is no matter."""
    began, killed = time.monotonic(), {}
    while time.monotonic() - began < _PATIENCE_S:
        left = {process.pid: (process, _describe(process)) for process in _left(mark, owner)}
        if psutil.pid_exists(owner):
            left = {pid: found for pid, found in left.items() if not any(own in found[1] for own in _ITS_OWN)}
        if not left:
            break
        if time.monotonic() - began > _GRACE_S:
            for pid, (process, words) in left.items():
                with contextlib.suppress(psutil.Error):
                    process.kill()
                    killed[pid] = words or str(pid)
        time.sleep(0.05)
    return [*killed.values()]


def _wait_for_end(owner: int) -> None:
    """Until the pipe from the owner is closed, or the owner is dead: a child that it forked has the pipe too."""
    while os.getppid() == owner and not select.select([sys.stdin], [], [], 1.0)[0]:
        pass


if __name__ == "__main__":
    _wait_for_end(int(sys.argv[2]))
    for _words in _kill_all(sys.argv[1], int(sys.argv[2])):
        with contextlib.suppress(OSError):
            print(_words, flush=True)
