"""`shardmill work` as a pod runs it: named by the pod, with several GPUs, and with a file for its last words."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardmill import prepare
from shardmill.engines.deaths import failure
from shardmill.ledger import Ledger
from shardmill.run import Run
from tests.support.cli import command, process
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S, wait_for

Write = Callable[..., Path]
POD = "wiki-0-abcde"


def _plan(folder: Path, source: Path, delay_s: float = 0.0, **execution: Any) -> Path:
    spec = fake_spec(source, params={"delay_s": delay_s}, shard_bytes=1_500, **execution)
    return Path(prepare(spec, folder / "run").ledger.url)


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "SHARDMILL_WORKER": POD, "SHARDMILL_TERMINATION_LOG": str(folder / "last-words")}


def test_a_worker_has_the_name_of_its_pod(write_jsonl: Write, tmp_path: Path) -> None:
    place = _plan(tmp_path, write_jsonl(fake_rows(60)), read_ahead=0.125)
    said = process("work", place, env=_environment(tmp_path))
    assert said.status == 0, said.err
    assert [worker["id"] for worker in Run(place).status().workers] == [POD]
    assert not (tmp_path / "last-words").exists()


def test_a_pod_with_several_devices_runs_a_worker_on_each(write_jsonl: Write, tmp_path: Path) -> None:
    place = _plan(tmp_path, write_jsonl(fake_rows(300)), 0.05, batch_tokens=300, then=["verify"])
    said = process("work", place, "--workers", 2, "--device", "cpu", env=_environment(tmp_path))
    assert said.status == 0, said.err
    assert "Verified: 300 rows" in said.err
    workers = [worker["id"] for worker in Run(place).status().workers]
    assert len(workers) == 2
    assert all(name.startswith(f"{POD}-") for name in workers)


def test_the_workers_of_a_pod_that_is_told_to_end_give_all_back(write_jsonl: Write, tmp_path: Path) -> None:
    place = _plan(tmp_path, write_jsonl(fake_rows(300)), 0.2, batch_tokens=200)
    words = command("work", place, "--workers", 2, "--device", "cpu")
    pod = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=_environment(tmp_path))
    wait_for(lambda: Ledger(place).commits.shards())
    pod.terminate()
    _, err = pod.communicate(timeout=PATIENCE_S)
    assert pod.returncode == 75, err
    assert Ledger(place).leases.read() == {}


def test_a_final_error_ends_a_pod_with_2_and_leaves_its_cause(write_jsonl: Write, tmp_path: Path) -> None:
    place = _plan(tmp_path, write_jsonl(fake_rows(20)))
    ledger = Ledger(place)
    ledger.plan()
    ledger.state.fail("somebody", "the disk is full", "Free some space.")
    # Elsewhere a failure that is no wrong usage ends with 1.
    assert process("work", place).status == 1
    assert process("work", place, env=_environment(tmp_path)).status == 2
    lines = (tmp_path / "last-words").read_text().splitlines()
    assert failure(0, "ended", lines).message == "the disk is full"
    assert "the disk is full" in (place / "logs" / f"{POD}.log").read_text()
