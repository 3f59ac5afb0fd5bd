"""A pod whose image lacks what the task needs ends for good before its first shard, and says what to build."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from shardmill.core.devices import Device
from shardmill.core.errors import Cure
from shardmill.engines.process import TERMINATION_LOG
from shardmill.ledger import Ledger
from shardmill.run.planner import make_plan
from tests.support.cli import command
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S

LACKS = """
from shardmill import testing
from shardmill.core.extras import missing_package

def open(self, device):
    raise missing_package("optuna")

testing.FakeTask.open = open
"""


def test_an_image_without_an_extra_ends_the_job_at_once(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    ledger, spec = Ledger(tmp_path / "run"), fake_spec(write_jsonl(fake_rows(20)))
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    ledger.state.want("anna@desk")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LACKS)
    told = tmp_path / "termination-log"
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    pod = {TERMINATION_LOG: str(told), "SHARDMILL_WORKER": "run-0-abcde", "PYTHONPATH": path}
    words = command("work", ledger.url, "--device", "cpu")
    done = subprocess.run(words, env={**os.environ, **pod}, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == Cure.FINAL, done.stderr
    assert "optuna is not installed" in told.read_text()
    assert "Build the pods' image with it (EXTRAS of deploy/Containerfile)" in told.read_text()
    assert ledger.leases.read() == {}
    assert not ledger.commits.shards()
