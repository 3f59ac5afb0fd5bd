"""Workers that nobody watches judge their run from its folder alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.errors import EXIT_DONE, EXIT_TRY_AGAIN, WORKER_FAILED, Cure, WorkerFailed
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, resume
from shardmill.run.planner import make_plan
from shardmill.run.status.screen import render
from tests.support.cli import Cli, command, process, write_spec
from tests.support.corpora import fake_rows
from tests.support.proof import assert_complete
from tests.support.waiting import PATIENCE_S, wait_for

Make = Callable[..., Ledger]


@pytest.fixture
def make(tmp_path: Path, write_jsonl: Callable[..., Path]) -> Make:
    """Plans a run that no process watches."""

    def make(rows: list[dict[str, str]], task: str = "shardmill.testing:FakeTask", **given: Any) -> Ledger:
        work = {"source": str(write_jsonl(rows)), "text": "text", "task": task, "params": given.pop("params", {})}
        spec = make_spec(work, {"lease_s": 600.0, "device": "cpu", **given})
        permission.allow(spec.work.code)
        ledger = Ledger(tmp_path / "run")
        ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
        ledger.put_execution(spec.execution.model_dump(mode="json"))
        return ledger

    return make


def work(ledger: Ledger) -> subprocess.CompletedProcess[str]:
    """One worker, until it ends."""
    command = [sys.executable, "-m", "shardmill.worker", ledger.url]
    environment = {**os.environ, **permission.environment(), "SHARDMILL_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def shown(ledger: Ledger) -> str:
    return "\n".join(str(line) for line in render(Run(ledger.url).status()).renderables)


def test_a_run_that_was_stopped_or_failed_is_left_alone_until_it_is_resumed(make: Make) -> None:
    ledger = make(fake_rows(20))
    ledger.state.stop("anna@desk")
    done = work(ledger)
    assert done.returncode == EXIT_TRY_AGAIN
    assert done.stderr == f"The run was stopped by anna@desk. Resume it with: shardmill resume {ledger.url}\n"
    assert "stopped by anna@desk" in shown(ledger)

    ledger.state.want("anna@desk")
    ledger.state.fail("worker-7", "The disk is full.", "Free some space.")
    done = work(ledger)
    assert done.returncode == Cure.FINAL
    said = json.loads(done.stderr.removeprefix(WORKER_FAILED))
    assert said["message"] == "The disk is full."
    assert said["hint"] == f"Free some space. Resume it with: shardmill resume {ledger.url}"
    assert "failed: The disk is full." in shown(ledger)
    assert ledger.workers.read() == [], "nobody began"
    status = Run(ledger.url).status().to_json()
    assert (status["state"], status["by"], status["cause"]) == ("failed", "worker-7", "The disk is full.")

    resume(ledger.url)
    assert ledger.state.look().state == "done"
    assert Run(ledger.url).status().state == "complete"


def test_a_final_error_of_one_worker_ends_the_run(make: Make) -> None:
    ledger = make([{"text": "!nan"}] * 2000, max_errors="1%")
    assert work(ledger).returncode == Cure.FINAL
    state = ledger.state.look()
    assert state.state == "failed"
    assert "over --max-errors 1%" in state.cause
    assert state.by == ledger.workers.read()[0]["id"]
    late = work(ledger)
    assert late.returncode == Cure.FINAL
    hint = json.loads(late.stderr.removeprefix(WORKER_FAILED))["hint"]
    assert hint == "Every row so far has failed. Mend the cause, then start over with --fresh."


def test_the_worker_that_commits_the_last_shard_says_that_the_run_is_done(make: Make) -> None:
    ledger = make(fake_rows(20))
    assert work(ledger).returncode == EXIT_DONE
    assert ledger.state.look().state == "done"


def test_workers_that_die_one_after_another_end_the_run(make: Make) -> None:
    ledger = make(fake_rows(20), task="tests.support.native:KillsAtLoad", max_restarts=1)
    assert [work(ledger).returncode for _ in range(2)] == [-9] * 2
    assert ledger.state.is_wanted()
    assert work(ledger).returncode == Cure.FINAL
    assert ledger.state.look().state == "failed"
    assert "2 workers died one after another without progress" in ledger.state.look().cause
    assert "2 workers died" in shown(ledger)
    with pytest.raises(WorkerFailed, match="died 2 times in a row"):
        resume(ledger.url)


def test_a_row_that_kills_is_found_by_workers_that_nobody_watches(make: Make) -> None:
    ledger = make([{"text": "harmless"}, {"text": "!kill"}], max_errors="100%", max_restarts=2)
    statuses = [work(ledger).returncode]
    while statuses[-1] == -9 and len(statuses) < 20:
        statuses.append(work(ledger).returncode)
    assert statuses[-1] == EXIT_DONE, ledger.state.look()
    assert len(statuses) > 4, "more deaths than a run without progress is forgiven"
    assert [e["row"] for e in Run(ledger.url).errors()] == [1]


def test_a_stuck_worker_ends_itself(make: Make, tmp_path: Path) -> None:
    params = {"where": "run", "mark": str(tmp_path / "mark")}
    ledger = make(fake_rows(20), task="tests.support.native:NativeTask", params=params, stuck_s=3.0)
    done = work(ledger)
    assert done.returncode == Cure.HERE
    assert "no progress for" in done.stderr
    (record,) = ledger.workers.read()
    assert record["state"] == "failed"
    assert "No progress for" in record["error"]
    claim = ledger.claim("heir", len(ledger.plan().shards), lease_s=60.0)
    assert claim is not None
    assert claim.crashes == 1, "what it hung on is suspect"


def test_work_that_is_killed_in_the_middle_of_a_shard_is_finished_by_the_same_command(
    shardmill: Cli, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    """What an operator types: plan, work, kill -9, work again, verify."""
    rows, place = fake_rows(60), tmp_path / "run"
    spec = write_spec(tmp_path, write_jsonl(rows), params="delay_s = 0.1", shard_bytes=900)
    assert shardmill("plan", "--spec", spec, "--batch-tokens", 100, "--out", place).status == 0
    worker = subprocess.Popen(command("work", place), stderr=subprocess.DEVNULL)
    wait_for(lambda: Ledger(place).commits.shards() and any(held_rows(place)))
    worker.kill()
    worker.wait(PATIENCE_S)
    left = Ledger(place)
    done = set(left.commits.shards())
    assert 0 < len(done) < len(left.plan().shards)
    assert set(left.leases.read()) - done, "it died with a shard in its hands"
    again = process("work", place)
    assert again.status == 0, again.err
    assert_complete(place, rows)
    assert shardmill("verify", place).status == 0
    assert Ledger(place).state.look().state == "done"


def held_rows(place: Path) -> list[int]:
    """How many rows the workers have done of the shards they hold."""
    return [held["rows"] for beat in Ledger(place).workers.read() for held in beat["open"].values()]
