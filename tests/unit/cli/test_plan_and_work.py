"""`shardmill plan --out` writes a run folder, and `shardmill work` runs it: a run without a parent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shardmill import prepare, work
from shardmill.core.devices import Device
from shardmill.core.errors import StepFailed, TooManyErrors
from shardmill.ledger import Ledger
from shardmill.run import Run, start
from shardmill.testing import FakeTask, InProcessEngine
from shardmill.worker import Worker
from shardmill.worker.writer import Writer
from tests.support.cli import Cli, assert_told, command, process, write_spec
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S, wait_for

Write = Callable[..., Path]


def test_a_written_plan_is_the_one_that_a_run_starts_from(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    source, place = write_jsonl(fake_rows(60)), tmp_path / "run"
    spec = write_spec(tmp_path, source)
    said = shardmill("plan", "--spec", spec, "--max-errors", 3, "--out", place)
    assert said.status == 0, said.err
    assert f"shardmill work {place}" in said.err
    run = Run(place)
    assert run.plan.id in said.out
    assert run.status().state == "planned"
    assert not run.status().workers
    assert run.ledger.execution()["max_errors"] == "3"
    written = {path: path.read_bytes() for path in place.iterdir()}
    assert shardmill("plan", "--spec", spec, "--out", place).status == 0
    assert {path: path.read_bytes() for path in place.iterdir()} == written
    assert_told(shardmill("plan", "--spec", spec, "--keep", "id", "--out", place), 2, "a different run", "--fresh")
    assert shardmill("run", "--spec", spec, "--resume", "--out", place).status == 0
    assert Run(place).plan.generation == run.plan.generation
    assert Run(place).table(["id"]).num_rows == 60
    assert shardmill("plan", "--spec", spec, "--fresh", "--out", place).status == 0
    assert Run(place).plan.generation != run.plan.generation
    assert Run(place).status().shards_done == 0


def test_the_same_from_python(write_jsonl: Write, tmp_path: Path) -> None:
    spec = fake_spec(write_jsonl(fake_rows(30)))
    planned = prepare(spec, tmp_path / "run")
    assert planned.status().state == "planned"
    done = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert done.plan == planned.plan
    assert done.status().rows_per_s > 0
    assert json.loads((tmp_path / "run" / "execution.json").read_text())["settings"]["places"]


def _plan(folder: Path, source: Path, **execution: Any) -> Path:
    params = {"delay_s": execution.pop("delay_s", 0.0)}
    return Path(prepare(fake_spec(source, params=params, shard_bytes=1_500, **execution), folder / "run").ledger.url)


def test_two_workers_without_a_parent_finish_a_run_and_a_third_finds_it_done(
    shardmill: Cli, write_jsonl: Write, tmp_path: Path
) -> None:
    out = tmp_path / "merged.parquet"
    place = _plan(tmp_path, write_jsonl(fake_rows(300)), delay_s=0.5, then=["verify", f"merge:{out}"])
    both = [subprocess.Popen(command("work", place), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [worker.communicate(timeout=PATIENCE_S)[1] for worker in both]
    assert [worker.returncode for worker in both] == [0, 0], said
    assert sum("Verified: 300 rows" in each for each in said) == 1
    assert pq.read_table(out).column("id").to_pylist() == [row["id"] for row in fake_rows(300)]
    before = Run(place).ledger.steps.read()
    assert {step.state for step in before} == {"done"}
    third = shardmill("work", place, "--json")
    assert third.status == 0, third.err
    assert json.loads(third.out)["state"] == "complete"
    assert Run(place).ledger.steps.read() == before
    assert len(Run(place).status().workers) == 2


def test_a_worker_that_is_told_to_stop_says_try_again(write_jsonl: Write, tmp_path: Path) -> None:
    place = _plan(tmp_path, write_jsonl(fake_rows(300)), delay_s=0.2, batch_tokens=200)
    worker = subprocess.Popen(command("work", place), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: Ledger(place).commits.shards())
    worker.terminate()
    _, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 75, err
    assert f"shardmill work {place}" in err
    assert Ledger(place).leases.read() == {}


def test_a_stopped_run_draws_no_worker(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    place = _plan(tmp_path, write_jsonl(fake_rows(30)))
    assert shardmill("stop", place).status == 0
    assert_told(shardmill("work", place), 75, "stopped by", "resume")
    assert shardmill("resume", place, "--then", "verify").status == 0
    assert json.loads((place / "report.json").read_text())["verified"]


def test_a_worker_refuses_another_model_and_another_device(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    place = _plan(tmp_path, write_jsonl(fake_rows(20)))
    assert_told(shardmill("work", place, "--device", "all"), 2, "One worker has one device")
    plan = json.loads((place / "plan.json").read_text())
    plan["fingerprint"] = {"weights": "another"}
    (place / "plan.json").write_text(json.dumps(plan))
    assert_told(process("work", place), 69, "not the one that the run was planned with (weights differ)")
    assert not Ledger(place).commits.shards()


def test_the_limit_of_failed_rows_holds_over_all_workers(
    write_jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two workers that work at the same time meets one failed row."""
    rows: list[Any] = fake_rows(60)
    rows[5]["text"] = rows[55]["text"] = None
    place = _plan(tmp_path, write_jsonl(rows), max_errors="1")
    shards = Ledger(place).plan().shards
    first, second = (Worker(Ledger(place), device=Device("cpu", "cpu")) for _ in range(2))
    first.choice.claim = lambda held: first.ledger.claim("first", len(shards), lease_s=60.0, among=[0])  # type: ignore[method-assign]
    first.choice.is_over = lambda: first.ledger.commits.is_done(0)  # type: ignore[method-assign]
    assert first.work()
    with pytest.raises(TooManyErrors, match="2 of 60 rows failed"):
        second.work()
    Ledger(place).state.want("somebody")
    monkeypatch.setattr(Writer, "_count_others", lambda self: (0, 0))
    with pytest.raises(TooManyErrors, match="2 of 60 rows failed"):
        work(place)


def test_a_step_that_fails_is_a_failed_run_until_it_is_resumed(
    shardmill: Cli, write_jsonl: Write, tmp_path: Path
) -> None:
    folder = tmp_path / "there"
    place = _plan(tmp_path, write_jsonl(fake_rows(20)), then=f"merge:{folder / 'a.parquet'}")
    folder.write_text("a file, not a folder")
    with pytest.raises(StepFailed, match=r"merge:.*a\.parquet: .* cannot be created"):
        work(place)
    assert_told(shardmill("work", place), 1, "a.parquet: ", "cannot be created")
    folder.unlink()
    assert shardmill("resume", place).status == 0
    assert pq.read_table(folder / "a.parquet").num_rows == 20


def test_a_worker_frees_its_model_before_it_verifies(
    write_jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, seen = _plan(tmp_path, write_jsonl(fake_rows(20)), then=["verify"]), list[str]()
    monkeypatch.setattr(FakeTask, "open", lambda task, device: seen.append("opened"))
    monkeypatch.setattr(FakeTask, "close", lambda task: seen.append("closed"))
    work(place, device="cpu")
    assert seen == ["opened", "closed", "opened", "closed"]


def test_a_finished_run_shows_its_average_rate(write_jsonl: Write, tmp_path: Path, shardmill: Cli) -> None:
    spec, place = write_spec(tmp_path, write_jsonl(fake_rows(20))), tmp_path / "run"
    assert "20 rows in 1 shard, 0 errors" in shardmill("run", "--spec", spec, "--out", place, "--device", "cpu").err
    shown = shardmill("status", place).out
    assert "/s on average" in shown
    assert "/s now" not in shown


def test_detach_returns_once_the_workers_are_placed(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    spec, place = write_spec(tmp_path, write_jsonl(fake_rows(60)), params="delay_s = 0.5"), tmp_path / "run"
    words = ("run", "--spec", spec, "--out", place, "--device", "cpu", "--detach")
    assert_told(shardmill(*words, "--engine", "ssh"), 2, "--detach is not for the engine 'ssh'", "shardmill work RUN")
    said = shardmill(*words)
    assert said.status == 0, said.err
    assert said.err.startswith("Detached: 1 worker. Watch: shardmill status")
    wait_for(lambda: Ledger(place).state.look().state == "done")
    assert Run(place).table(["id"]).num_rows == 60
