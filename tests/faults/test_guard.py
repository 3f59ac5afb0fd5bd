"""What tests start does not outlive them, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.guard import kill_tree
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
# A server that left its parent, as daemons do, and a child of it that has another environment.
OWNER = """
import subprocess, sys, time
from tests.support import guard
dismiss = guard.post()
inner = f"import subprocess, time; print(subprocess.Popen(['sleep', '600'], env={{}}).pid, flush=True); time.sleep(600)"
outer = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True)"
subprocess.run([sys.executable, "-c", outer])
sys.stdin.read()
print(dismiss(), flush=True)
"""


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("end", ["killed", "dismissed"])
def test_what_an_owner_started_ends_with_it(end: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", OWNER], env=environment, text=True, **pipes) as owner:
        child = int(owner.stdout.readline())
        daemon = psutil.Process(child).parent()
        assert daemon is not None
        if end == "killed":
            owner.send_signal(signal.SIGKILL)
        else:
            assert "sleep 600" in owner.communicate()[0]
        wait_for(lambda: not _lives(child) and not _lives(daemon.pid))


def test_a_tree_is_killed_as_a_whole() -> None:
    inner = "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        kill_tree(process)
    wait_for(lambda: not _lives(child))
