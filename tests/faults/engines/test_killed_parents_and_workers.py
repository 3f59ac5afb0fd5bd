"""The local engine with real worker processes: killed, stuck, told to stop, doubled; and parents that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import WorkerFailed
from shardmill.engines.local import LocalEngine
from shardmill.ledger import Ledger
from shardmill.run import start
from shardmill.run.planner import make_plan
from tests.support.corpora import fake_rows, fake_spec
from tests.support.proof import assert_complete
from tests.support.waiting import PATIENCE_S, hear_ctrl_c, wait_for

Write = Callable[..., Path]

PARENT = """
import json, sys
from shardmill.run import start
from shardmill.plan.spec import make_spec
spec = json.loads(sys.argv[1])
start(make_spec(spec["work"], spec["execution"]), sys.argv[2])
"""


def _spec(source: Path, **execution: Any) -> Any:
    return fake_spec(source, params={"delay_s": 0.01}, batch_tokens=300, **execution)


def _parent(spec: Any, run: Path) -> subprocess.Popen[bytes]:
    words = json.dumps(spec.model_dump(mode="json"))
    command = [sys.executable, "-c", PARENT, words, str(run)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=hear_ctrl_c)


def _workers(run: Path) -> list[psutil.Process]:
    """Live worker processes of one run."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        if "shardmill.worker" in line and str(run) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_a_killed_worker_is_replaced(tmp_path: Path, write_jsonl: Write) -> None:
    rows, run = fake_rows(600), tmp_path / "run"
    parent = _parent(_spec(write_jsonl(rows), workers=2), run)
    for wanted in (1, 3):
        wait_for(lambda n=wanted: len(Ledger(run).commits.shards()) >= n)
        wait_for(lambda: _workers(run))[0].kill()
    assert parent.wait(PATIENCE_S) == 0
    assert_complete(run, rows)


@pytest.mark.parametrize("after", [0, 2, 5])
def test_a_killed_parent_takes_its_workers_along_and_a_new_one_goes_on(
    tmp_path: Path, write_jsonl: Write, after: int
) -> None:
    rows, run = fake_rows(600), tmp_path / "run"
    spec = _spec(write_jsonl(rows), workers=2)
    parent = _parent(spec, run)
    wait_for(lambda: (run / "plan.json").exists() and len(Ledger(run).commits.shards()) >= after)
    parent.kill()
    parent.wait()
    wait_for(lambda: not _workers(run))
    start(spec, run)
    assert_complete(run, rows)


def test_parent_and_workers_killed_together_cost_no_waiting(tmp_path: Path, write_jsonl: Write) -> None:
    """The leases of the dead are good for longer than a test may take; a dead process is known to be dead."""
    rows, run = fake_rows(600), tmp_path / "run"
    spec = _spec(write_jsonl(rows), workers=2, lease_s=3600)
    parent = _parent(spec, run)
    wait_for(lambda: len(Ledger(run).commits.shards()) >= 2)
    parent.kill()
    for worker in _workers(run):
        worker.kill()
    parent.wait()
    assert list(Ledger(run).store.list("leases/"))
    start(spec, run)
    assert_complete(run, rows)


def test_two_parents_on_one_run(tmp_path: Path, write_jsonl: Write) -> None:
    rows, run = fake_rows(600), tmp_path / "run"
    spec = _spec(write_jsonl(rows))
    pair = [_parent(spec, run), _parent(_spec(tmp_path / "items.jsonl", workers=2, shard_bytes=3_000), run)]
    assert [p.wait(PATIENCE_S) for p in pair] == [0, 0], [p.stderr.read() for p in pair if p.stderr]
    assert_complete(run, rows)


def _place(tmp_path: Path, write_jsonl: Write, rows: list[dict[str, str]], **execution: Any) -> Ledger:
    spec = _spec(write_jsonl(rows), **execution)
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger


def test_sigterm_gives_the_leases_back_and_exits_75(tmp_path: Path, write_jsonl: Write) -> None:
    ledger = _place(tmp_path, write_jsonl, fake_rows(600), lease_s=600)
    worker = subprocess.Popen([sys.executable, "-m", "shardmill.worker", ledger.url])
    wait_for(lambda: ledger.leases.read() and ledger.commits.shards())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 75
    assert ledger.leases.read() == {}
    parts = {e.key for e in ledger.store.list("parts/")}
    assert parts == {c.part for c in ledger.commits.read().values()}


def test_a_paused_worker_loses_its_shard_and_does_no_harm_when_it_wakes(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(600)
    ledger = _place(tmp_path, write_jsonl, rows, lease_s=1.0)
    paused = subprocess.Popen([sys.executable, "-m", "shardmill.worker", ledger.url])
    wait_for(lambda: ledger.leases.read() and ledger.commits.shards())
    paused.send_signal(signal.SIGSTOP)
    other = subprocess.Popen([sys.executable, "-m", "shardmill.worker", ledger.url])
    assert other.wait(PATIENCE_S) == 0
    paused.send_signal(signal.SIGCONT)
    assert paused.wait(PATIENCE_S) == 0
    assert_complete(tmp_path / "run", rows)


def test_a_straggler_is_shadowed_near_the_end(tmp_path: Path, write_jsonl: Write) -> None:
    """A worker that renews its lease but is slow: an idle one does its last shard over, and the first commit counts."""
    rows = fake_rows(100)
    ledger = _place(tmp_path, write_jsonl, rows, lease_s=0.5, shard_bytes=100_000)
    slow = ledger.claim("slow", 1, lease_s=600)
    assert slow is not None
    idle = subprocess.Popen([sys.executable, "-m", "shardmill.worker", ledger.url])
    assert idle.wait(PATIENCE_S) == 0
    assert_complete(tmp_path / "run", rows)


def test_a_stuck_worker_is_found_and_replaced(tmp_path: Path, write_jsonl: Write) -> None:
    """Its process lives and beats, but no batch ends."""
    rows, run = fake_rows(400), tmp_path / "run"
    spec = _spec(write_jsonl(rows), stuck_s=4.0, lease_s=2.0)
    parent = _parent(spec, run)
    wait_for(lambda: Ledger(run).commits.shards())
    stuck = _workers(run)[0]
    stuck.suspend()
    wait_for(lambda: not stuck.is_running() or stuck.status() == psutil.STATUS_ZOMBIE)
    assert parent.wait(PATIENCE_S) == 0
    assert_complete(run, rows)


def test_a_worker_that_dies_at_once_is_not_restarted_for_ever(tmp_path: Path, write_jsonl: Write) -> None:
    spec = fake_spec(write_jsonl(fake_rows(20)), max_restarts=2)
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    broken = {**spec.execution.model_dump(mode="json"), "no_such_setting": 1}
    ledger.put_execution(broken)
    placement = LocalEngine([Device("cpu", "cpu")], max_restarts=2).start(ledger.url)
    with pytest.raises(WorkerFailed, match="died 3 times in a row"):
        wait_for(lambda: not placement.poll())
    placement.stop()


def test_ctrl_c_stops_cleanly_and_the_same_command_resumes(tmp_path: Path, write_jsonl: Write) -> None:
    rows, run = fake_rows(600), tmp_path / "run"
    spec = _spec(write_jsonl(rows), workers=2, lease_s=600)
    parent = _parent(spec, run)
    wait_for(lambda: len(Ledger(run).commits.shards()) >= 2)
    os.kill(parent.pid, signal.SIGINT)
    assert parent.wait(PATIENCE_S) != 0
    assert not _workers(run)
    assert Ledger(run).leases.read() == {}
    start(spec, run)
    assert_complete(run, rows)


def test_what_a_worker_said_is_known_though_its_log_cannot_be_made(tmp_path: Path, write_jsonl: Write) -> None:
    run = tmp_path / "run"
    spec = _spec(write_jsonl(fake_rows(20)), workers=1, max_restarts=0)
    ledger = Ledger(run)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution({**spec.execution.model_dump(mode="json"), "precision": "no such precision"})
    (run / "logs").write_text("a file where the folder should be")
    placement = LocalEngine([Device("cpu", "cpu", 1)], max_restarts=0).start(str(run))
    with pytest.raises(WorkerFailed, match="precision"):
        wait_for(lambda: not placement.poll())
