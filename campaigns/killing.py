"""What campaigns of kills share: processes from a fork server, SIGKILL, servers of our own, a file of what was done.

Each process is one of its own, and starting it costs little. It leaves a file in the folder `pids`, with its role and
pid as the name, by which it is found; what it prints goes into the log beside these.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from tests.support.seaweed import seaweed

# The status of a process that gives up because others died without progress: the same command goes on.
GAVE_UP = 3

_Outcome = TypeVar("_Outcome")
processes = multiprocessing.get_context("forkserver")


class Forked:
    """A process from the fork server, with what engines ask of `subprocess.Popen`."""

    def __init__(self, *call: Any) -> None:
        self._process = processes.Process(target=call[0], args=call[1:])
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)


def enter(pids: Path, role: str) -> Path:
    """Begin a process: a session of its own, and the file by which it is found."""
    os.setsid()
    with open(pids / "log", "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    own = pids / f"{role}-{os.getpid()}"
    own.touch()
    return own


def kill(found: Path) -> bool:
    """Kill the process that left this file; False if it had ended."""
    found.unlink(missing_ok=True)
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(found.name.rpartition("-")[2]), signal.SIGKILL)
        return True
    return False


class Steps:
    """Counts how often the code of these files comes to each of its steps, and kills this process at one of them.

    A step is a line that calls, enters or leaves a function, before or after that.
    """

    def __init__(self, code: tuple[str, ...], last: str, times: int) -> None:
        self.code, self.seen, self.last, self.times = code, Counter[str](), last, times

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename.startswith(self.code):
            step = f"{frame.f_code.co_filename}:{frame.f_lineno} {event}"
            self.seen[step] += 1
            if step == self.last and self.seen[step] == self.times:
                os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def servers(folder: Path, kinds: Iterable[str]) -> Iterator[dict[str, str]]:
    """The URLs of servers that end with this: "s3", "postgres"."""
    from shardmill.postgres import embedded

    with contextlib.ExitStack() as stack:
        urls = {}
        if "s3" in kinds:
            (folder / "s3").mkdir()
            urls["s3"] = stack.enter_context(seaweed(folder / "s3"))
        if "postgres" in kinds:
            urls["postgres"] = embedded.start(folder / "pg")
            stack.callback(embedded.stop, folder / "pg")
        yield urls


def make_parser(text: str | None, kinds: Sequence[str], kills: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin nothing new after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=kinds, action="append", help="one of them; may be repeated")
    parser.add_argument("--record", type=Path, help="append what is finished here, and go on from what is there")
    return parser


def read_outcomes(record: Path | None, kind: type[_Outcome]) -> list[_Outcome]:
    if record is None or not record.exists():
        return []
    return [kind(**json.loads(line)) for line in record.read_text().splitlines()]


def keep_outcome(record: Path | None, outcome: Any) -> None:
    if record is not None:
        with open(record, "a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
