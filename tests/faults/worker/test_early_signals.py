"""A signal that comes before a worker has begun ends it at once, and is no crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import EXIT_TRY_AGAIN
from shardmill.ledger import Ledger
from shardmill.run.planner import make_plan
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S

# Sends this process a signal when it first looks for a module, then runs the worker as `python -m` does.
SIGNAL_AT_IMPORT = """
import os, runpy, sys

run, module, number = sys.argv[1:]

class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, AtImport())
sys.argv = ["worker", run]
runpy.run_module("shardmill.worker", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda n: n.name)
@pytest.mark.parametrize("module", ["shardmill.ledger", "shardmill.worker.runner", "shardmill.testing"])
def test_a_signal_during_the_imports(
    number: signal.Signals, module: str, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    ledger, spec = Ledger(tmp_path / "run"), fake_spec(write_jsonl(fake_rows(20)))
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    command = [sys.executable, "-c", SIGNAL_AT_IMPORT, ledger.url, module, str(int(number))]
    assert subprocess.run(command, timeout=PATIENCE_S).returncode == EXIT_TRY_AGAIN
    assert ledger.leases.read() == {}
    assert ledger.commits.shards() == set()
