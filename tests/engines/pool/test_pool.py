"""`shardmill work FOLDER` serves the wanted runs in a folder, and `--engine pool` puts them there."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from shardmill import prepare
from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.run import Run, pool
from shardmill.run.pool import serve
from shardmill.testing import FakeTask
from tests.support.cli import Cli, assert_told, command, process, write_spec
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S, wait_for

Make = Callable[..., Ledger]


class CountedTask(FakeTask):
    """Counts how often it is opened and closed."""

    serves_runs = True
    calls: ClassVar[list[str]] = []

    def open(self, device: Device) -> None:
        super().open(device)
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def make(tmp_path: Path, write_jsonl: Callable[..., Path]) -> Make:
    """Plans a run in the folder of the pool, and wants it."""

    def make(
        name: str, rows: int = 60, delay_s: float = 0.0, task: str = "shardmill.testing:FakeTask", **execution: Any
    ) -> Ledger:
        source = write_jsonl(fake_rows(rows), name=f"{name}.jsonl")
        spec = fake_spec(source, params={"delay_s": delay_s}, **execution)
        spec = spec.model_copy(update={"work": spec.work.model_copy(update={"task": task})})
        ledger = prepare(spec, tmp_path / "runs" / name).ledger
        ledger.state.want("anna@desk")
        return ledger

    return make


def _start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)


def test_all_runs_are_served_by_priority_and_finished(make: Make, tmp_path: Path) -> None:
    make("old")
    make("new", then=["verify"])
    make("urgent", priority=5)
    stopped = make("stopped", priority=9)
    stopped.state.stop("anna@desk")
    said = process("work", tmp_path / "runs", "--json")
    assert said.status == 0, said.err
    served = json.loads(said.out)["runs"]
    assert [place.rpartition("/")[2] for place in served] == ["urgent", "old", "new"]
    assert [Run(place).status().state for place in served] == ["complete"] * 3
    assert json.loads((tmp_path / "runs" / "new" / "report.json").read_text())["verified"]
    assert not stopped.workers.read(), "a stopped run draws no worker"
    again = process("work", tmp_path / "runs")
    assert (again.status, "served: nothing" in again.err) == (0, True)


@pytest.mark.parametrize("serves_runs", [True, False])
def test_a_model_is_loaded_once_for_runs_that_would_load_the_same(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serves_runs: bool
) -> None:
    monkeypatch.setattr(CountedTask, "calls", calls := [])
    monkeypatch.setattr(CountedTask, "serves_runs", serves_runs)
    task = f"{__name__}:CountedTask"
    runs = [
        make("large", 60, priority=5, task=task),
        make("small", 40, priority=4, task=task),
        make("checked", 40, priority=3, task=task, then=["verify"]),
        make("after", 40, priority=2, task=task),
        make("other", 40, delay_s=0.001, priority=1, task=task),
    ]
    assert len(serve(tmp_path / "runs", allow_code=True).runs) == len(runs)
    assert {Run(run.url).status().state for run in runs} == {"complete"}
    own = ["open", "close"]
    # It is closed before a step that may load the model itself, and for a run with other parameters.
    kept, each = [*own * 3, "open"], own * 6
    assert calls == (kept if serves_runs else each)


def test_a_worker_leaves_at_once_what_others_hold(make: Make, shardmill: Cli, tmp_path: Path) -> None:
    ledger = make("slow", rows=10, delay_s=5.0, lease_s=60.0)
    assert len(ledger.plan().shards) == 1
    first = _start("work", tmp_path / "runs")
    wait_for(ledger.leases.read)
    said = shardmill("work", tmp_path / "runs", "--json")
    assert (said.status, json.loads(said.out)["runs"]) == (0, [])
    assert len(ledger.workers.read()) == 1, "a worker without a shard loads no model and leaves no record"
    assert first.wait(PATIENCE_S) == 0
    assert Run(ledger.url).status().state == "complete"


def test_what_follows_the_last_shard_is_done_by_the_next_worker(make: Make, tmp_path: Path) -> None:
    """The last worker died between its last commit and the steps."""
    ledger = make("run", then=["verify"])
    assert serve(tmp_path / "runs").runs == (ledger.url,)
    for step in ("sweep", "verify"):
        ledger.steps.forget(step)
    ledger.state.want("anna@desk")
    assert serve(tmp_path / "runs").runs == (ledger.url,)
    assert {step.state for step in ledger.steps.read()} == {"done"}
    assert ledger.state.look().state == "done"


def test_a_worker_moves_to_a_run_of_higher_priority_between_two_shards(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_LOOK_EVERY_S", 0.0)
    low = make("low", rows=400, delay_s=0.2, shard_bytes=1000)
    worker = threading.Thread(target=serve, args=(tmp_path / "runs",))
    worker.start()
    wait_for(low.commits.shards)
    high = make("high", priority=1)
    wait_for(lambda: high.state.look().state == "done")
    worker.join(PATIENCE_S)
    last_of_low, last_of_high = (
        max(commit.finished_at for commit in each.commits.read().values()) for each in (low, high)
    )
    assert last_of_low > last_of_high, "the lower run waited"
    assert low.state.look().state == "done"
    assert low.leases.read() == {}
    assert [len(each.workers.read()) for each in (low, high)] == [2, 1]


def test_a_worker_in_mid_shard_is_told_to_stop(make: Make, tmp_path: Path) -> None:
    ledger = make("slow", rows=300, delay_s=0.2, batch_tokens=200)
    worker = _start("work", tmp_path / "runs", "--forever")
    wait_for(ledger.commits.shards)
    worker.terminate()
    _, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 75, err
    assert f"shardmill work {tmp_path / 'runs'}" in err
    assert ledger.leases.read() == {}


def test_a_pool_that_never_ends_takes_what_is_put_into_it(
    shardmill: Cli, make: Make, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    worker = _start("work", tmp_path / "runs", "--forever")
    try:
        spec = write_spec(tmp_path, write_jsonl(fake_rows(60)))
        left = tmp_path / "runs" / "left"
        said = shardmill("run", "--spec", spec, "--engine", "pool", "--detach", "--out", left)
        assert said.status == 0, said.err
        assert "Detached" in said.err
        watched = shardmill(
            "run", "--spec", spec, "--engine", "pool", "--priority", 3, "--out", tmp_path / "runs" / "b"
        )
        assert watched.status == 0, watched.err
        assert Run(tmp_path / "runs" / "b").ledger.execution()["priority"] == 3
        wait_for(lambda: Ledger(left).state.look().state == "done")
        # Stopping a run is no reason for its worker to end.
        slow = make("slow", rows=300, delay_s=0.2, batch_tokens=200)
        wait_for(slow.commits.shards)
        assert shardmill("stop", slow.url).status == 0
        wait_for(lambda: slow.leases.read() == {})
        after = make("after")
        wait_for(lambda: after.state.look().state == "done")
        assert worker.poll() is None
    finally:
        worker.terminate()
        worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 75


def test_a_run_that_cannot_be_served_here_is_left_out(make: Make, shardmill: Cli, tmp_path: Path) -> None:
    other = make("other", priority=1)
    plan = json.loads((tmp_path / "runs" / "other" / "plan.json").read_text())
    plan["fingerprint"] = {"weights": "another"}
    (tmp_path / "runs" / "other" / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "plan.json").write_text("{")
    make("good")
    said = process("work", tmp_path / "runs")
    assert "damaged is left out: " in said.err
    assert "other is left out: The model here is not the one" in said.err
    assert Run(tmp_path / "runs" / "good").status().state == "complete"
    assert said.status in (2, 69), "the scheduler hears of it"
    assert not other.commits.shards()


def test_a_folder_without_runs(shardmill: Cli, make: Make, tmp_path: Path) -> None:
    assert_told(shardmill("work", tmp_path), 2, "no run found here", "the folder that the runs are in")
    assert_told(shardmill("work", tmp_path / "nowhere", "--forever"), 2, "no such folder")
    assert_told(shardmill("work", tmp_path, "--workers", 2), 2, "--workers is for one run")
    run = make("run").url
    assert_told(shardmill("work", run, "--forever"), 2, "is a run", "Leave out --forever")
    assert_told(
        shardmill(
            "run", "--task", "x:Y", "--text", "t", "a.jsonl", "--engine", "pool", "--set", "a=b", "--out", tmp_path
        ),
        2,
        "has no option 'a'",
    )
