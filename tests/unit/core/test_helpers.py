"""Processes that help this one: answers, errors, deaths, limits, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SourceError
from shardmill.core.helpers import HelperLost, Helpers
from tests.support.waiting import PATIENCE_S, wait_for

HERE = f"{__name__}:make"


class Unspeakable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def make(given: str) -> Callable[[Any], Any]:
    def answer(question: tuple[str, Any]) -> Any:
        what, value = question
        match what:
            case "pid":
                return os.getpid()
            case "print":
                print(value)
                os.write(1, b"straight to the file")
                return value
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(value)
            case "sleep":
                time.sleep(value)
            case "memory":
                return len(bytearray(value))
            case "raise":
                raise value
            case "unspeakable":
                raise Unspeakable("not", "picklable")
        return f"{given} {value}"

    return answer


def test_questions_are_answered_by_processes_that_stay() -> None:
    with Helpers(HERE, "given", 1) as helpers:
        first = helpers.call(("pid", None))
        assert helpers.call(("pid", None)) == first != os.getpid()
        assert helpers.call(("say", "é" * 100_000)) == "given " + "é" * 100_000
        assert helpers.call(("print", "what a library prints is no answer")) == "what a library prints is no answer"


def test_threads_are_answered_at_the_same_time_by_no_more_than_asked_for() -> None:
    with Helpers(HERE, "", 2) as helpers, ThreadPoolExecutor(6) as pool:
        began = time.monotonic()
        assert len(set(pool.map(helpers.call, [("sleep", 0.3)] * 6))) == 1
        assert time.monotonic() - began > 0.8
        assert len(set(pool.map(helpers.call, [("pid", None)] * 20))) <= 2


def test_an_error_is_raised_here_and_costs_no_process() -> None:
    with Helpers(HERE, "", 1) as helpers:
        pid = helpers.call(("pid", None))
        with pytest.raises(SourceError, match="gone") as raised:
            helpers.call(("raise", SourceError("It is gone.", hint="Fetch it again.")))
        assert raised.value.hint == "Fetch it again."
        with pytest.raises(FileNotFoundError):
            helpers.call(("raise", FileNotFoundError(2, "no", "such")))
        with pytest.raises(Exception, match="Unspeakable: not picklable"):
            helpers.call(("unspeakable", None))
        assert helpers.call(("pid", None)) == pid


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (("kill", None), "was ended by SIGKILL"),
        (("exit", 3), "ended with status 3"),
        (("sleep", 60), "took longer than 2 s"),
        (("memory", 8 << 30), "needed more memory than it may use"),
    ],
)
def test_a_process_that_is_lost_costs_its_question(question: tuple[str, Any], why: str) -> None:
    with Helpers(HERE, "next", 1, seconds=2.0, memory_bytes=4 << 30) as helpers:
        helpers.call(("pid", None))
        with pytest.raises(HelperLost) as lost:
            helpers.call(question)
        assert lost.value.why == why
        assert helpers.call(("say", "one")) == "next one"


def test_closing_ends_them_even_in_the_middle_of_a_question() -> None:
    helpers = Helpers(HERE, "", 1)
    pid = helpers.call(("pid", None))
    lost: list[BaseException] = []

    def ask() -> None:
        try:
            helpers.call(("sleep", 60))
        except HelperLost as error:
            lost.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    # It asks, or is about to: the end is the same.
    time.sleep(0.3)
    helpers.close()
    thread.join(PATIENCE_S)
    assert lost
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(HelperLost, match="was ended"):
        helpers.call(("pid", None))


def test_a_script_without_a_main_guard_gets_help(tmp_path: Path) -> None:
    """Nothing of the caller's own script is imported by its helpers, and they end with it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from shardmill.core.helpers import Helpers\n"
        "print('once')\n"
        f"helpers = Helpers({HERE!r}, '', 1)\n"
        "print(helpers.call(('pid', None)))\n"
        "os._exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, env=environment).stdout
    once, pid = said.split()
    assert once == "once"
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
