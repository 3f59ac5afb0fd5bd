"""examples/train_ddp.py as a user runs it: killed on two processes, resumed on three."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardmill.augment import AugmentationConfig, gen_augmentation_params
from shardmill.ledger import Ledger
from shardmill.run.carrying import carry_out
from shardmill.testing import InProcessEngine
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S, wait_for

needed("torch")
EXAMPLE = Path(__file__).parents[3] / "examples" / "train_ddp.py"


def _start(out: Path, workers: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(EXAMPLE), "--out", str(out), "--workers", workers])


def _kill_all_at_work(out: Path, running: subprocess.Popen[bytes]) -> None:
    """With -9, once a group of two has kept a checkpoint."""
    ledger = Ledger(out)
    wait_for(lambda: running.poll() is not None or ledger.find_plan())

    def at_work() -> bool:
        assert running.poll() is None
        gang = ledger.gangs.find(0)
        return gang is not None and len(gang.members) == 2 and ledger.checkpoints.find(0) is not None

    wait_for(at_work)
    running.kill()
    for worker in ledger.workers.read():
        os.kill(worker["pid"], signal.SIGKILL)
    running.wait()


def test_killed_on_two_and_resumed_on_three_it_has_the_log_of_an_undisturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    running = _start(killed, "2:2")
    try:
        _kill_all_at_work(killed, running)
    finally:
        running.kill()
    assert not Ledger(killed).commits.shards()
    assert _start(killed, "3:3").wait(PATIENCE_S) == 0
    log = killed.with_suffix(".log.jsonl").read_text()
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    work = {"items": 1, "task": "train_ddp:Training"}
    whole = carry_out(work, {}, tmp_path / "whole", engine=InProcessEngine())
    assert log == whole.table()["log"].to_pylist()[0] + "\n"
    rows = [json.loads(line) for line in log.splitlines()]
    assert sorted((row["epoch"], row["id"]) for row in rows) == [(e, i) for e in range(5) for i in range(240)]
    last = rows[-1]
    assert last == {
        "epoch": 4,
        "id": last["id"],
        **gen_augmentation_params(last["id"], AugmentationConfig(seed=7), epoch=4),
    }
