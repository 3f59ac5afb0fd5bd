"""Processes that are killed at a step after the last shard."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shardmill import prepare, work
from shardmill.core.errors import StepFailed
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S

Write = Callable[..., Path]
KILLED = """
import os, signal, sys
from shardmill import work
from shardmill.worker import steps
steps._DO["merge"] = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
work(sys.argv[1])
"""


def _die_at_the_merge(place: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, place], capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_step_whose_holder_is_killed_is_done_by_another(write_jsonl: Write, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    spec = fake_spec(write_jsonl(fake_rows(40)), then=["verify", f"merge:{out}"], lease_s=600.0)
    place = prepare(spec, tmp_path / "run").ledger.url
    _die_at_the_merge(place)
    assert not out.exists()
    run = work(place)
    assert pq.read_table(out).num_rows == 40
    steps = {step.step.partition(":")[0]: step for step in run.ledger.steps.read()}
    assert {name: step.state for name, step in steps.items()} == dict.fromkeys(("sweep", "verify", "merge"), "done")
    assert steps["merge"].deaths == 1
    assert run.ledger.state.look().state == "done"


def test_a_step_at_which_everybody_dies_ends_the_run(write_jsonl: Write, tmp_path: Path) -> None:
    spec = fake_spec(write_jsonl(fake_rows(10)), then=f"merge:{tmp_path / 'out.parquet'}", lease_s=600.0)
    run = prepare(spec, tmp_path / "run")
    for _ in range(3):
        _die_at_the_merge(run.ledger.url)
    with pytest.raises(StepFailed, match="3 processes in a row died at it"):
        work(run.ledger.url)
    assert run.status().state == "failed"
    assert run.ledger.state.look().state == "failed"
