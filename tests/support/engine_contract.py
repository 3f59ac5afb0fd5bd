"""What every engine must do, as plain functions. An engine is given as its name and options in an execution.

def test_a_killed_worker_is_replaced(tmp_path):
    contract.a_killed_worker_is_replaced({"engine": "ray", "engine_options": {…}}, tmp_path)
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import WorkerFailed
from shardmill.engines import LOCAL, open_engine
from shardmill.engines.base import Engine, Placement
from shardmill.engines.local import LocalEngine
from shardmill.ledger import Ledger
from shardmill.plan.spec import Spec
from shardmill.plan.spec import make_spec as spec_of
from shardmill.run import Run, resume, start, stop
from shardmill.run.planner import devices_for, make_plan
from tests.support import functions
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S, wait_for

Execution = dict[str, Any]
LOCALLY: Execution = {"engine": LOCAL, "device": "cpu"}
# Of each batch: a run is still at work when a busy machine has seen its first commits.
_SLOW_S = 0.05


def every_row_comes_out_once(engine: Execution, tmp_path: Path) -> None:
    run = start(
        make_spec(tmp_path, engine, 3_000, shard_bytes=30_000, batch_tokens=None, delay_s=0.0), tmp_path / "run"
    )
    assert_complete(run, 3_000)
    # Which of the two commits how much is up to the machine.
    assert 1 <= len({c.worker for c in run.ledger.commits.read().values()}) <= 2


def a_killed_worker_is_replaced(engine: Execution, tmp_path: Path) -> None:
    ledger, placement = begin({**engine, "workers": 1}, tmp_path, 600)
    (first,) = wait_for(lambda: placement.poll() and len(ledger.commits.shards()) >= 2 and live_workers(ledger))
    os.kill(first["pid"], signal.SIGKILL)
    finish(placement)
    assert len(ledger.workers.read()) == 2
    assert_complete(Run(ledger.url), 600)


def stopping_leaves_nothing_behind(engine: Execution, tmp_path: Path) -> None:
    ledger, placement = begin(engine, tmp_path, 600, lease_s=600)
    wait_for(lambda: placement.poll() and len(ledger.commits.shards()) >= 2)
    pids = [w["pid"] for w in ledger.workers.read()]
    placement.stop()
    wait_for(lambda: not [p for p in pids if psutil.pid_exists(p)])
    assert ledger.leases.read() == {}
    assert 2 <= len(ledger.commits.shards()) < len(ledger.plan().shards)


def a_worker_that_always_dies_stops_the_run(engine: Execution, tmp_path: Path) -> None:
    """The error names the number of tries and the last output."""
    spec = make_spec(tmp_path, {**engine, "workers": 1, "max_restarts": 1}, 20)
    ledger, engine_ = _plan(spec, tmp_path)
    ledger.put_execution({**spec.execution.model_dump(mode="json"), "no_such_setting": 1})
    placement = engine_.start(ledger.url)
    try:
        with pytest.raises(WorkerFailed, match=r"(?s)died 2 times in a row.*no_such_setting"):
            finish(placement)
    finally:
        placement.stop()


def a_row_that_ends_its_worker_is_set_aside(engine: Execution, tmp_path: Path) -> None:
    """With status 0, as native code may: such a worker has not done its work, though its status says so."""
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in fake_rows(4)))
    work = {"source": str(source), "id": "id", "task": functions.vanish_at_two}
    run = start(spec_of(work, {**engine, "max_errors": "1"}), tmp_path / "run")
    assert run.table().column("letters").null_count == 1
    assert [(e["row"], "crashed every worker" in e["reason"]) for e in run.errors()] == [(2, True)]


def a_stopped_run_is_resumed(engine: Execution, tmp_path: Path) -> None:
    """By anybody who can read the folder: `stop` ends the workers, `resume` goes on from what is committed."""
    ledger, placement = begin(engine, tmp_path, 6_000, 0.01)
    try:
        wait_for(lambda: placement.poll() and len(ledger.commits.shards()) >= 2)
        assert stop(ledger.url, patience_s=PATIENCE_S).living == 0
    finally:
        placement.stop()
    done = ledger.commits.shards()
    assert len(done) < len(ledger.plan().shards)
    assert_complete(resume(ledger.url, {"engine_options": engine.get("engine_options", {})}), 6_000)
    assert ledger.commits.shards() > done


def engines_take_turns(engines: Sequence[Execution], tmp_path: Path) -> None:
    """Each engine does a part of one run and is stopped; the last one finishes it."""
    *some, last = engines
    done: set[int] = set()
    for engine in some:
        ledger, placement = begin(engine, tmp_path, 900)
        before = len(done)
        wait_for(lambda: placement.poll() and len(ledger.commits.shards()) >= before + 2)  # noqa: B023
        placement.stop()
        assert ledger.leases.read() == {}
        assert done < ledger.commits.shards()
        done = ledger.commits.shards()
    run = start(make_spec(tmp_path, last, 900), tmp_path / "run")
    assert len(run.plan.shards) > len(done)
    assert_complete(run, 900)


def detached_workers_finish_a_run_alone(engine: Execution, tmp_path: Path) -> None:
    """They also do what follows the last shard."""
    out = tmp_path / "out.parquet"
    then = ["verify", f"merge:{out}"]
    run = start(make_spec(tmp_path, {**engine, "detach": True}, 900, 0.2, then=then), tmp_path / "run")
    assert run.status().state != "complete"
    wait_for(lambda: run.ledger.state.look().state == "done")
    assert pq.read_table(out).num_rows == 900
    assert json.loads(run.ledger.store.get("report.json"))["verified"]


def detached_workers_are_adopted_and_stopped(engine: Execution, tmp_path: Path) -> None:
    """`resume` waits for those that work and doubles none; `stop` ends them."""
    run = start(make_spec(tmp_path, {**engine, "detach": True}, 900, 0.2), tmp_path / "run")
    before = wait_for(lambda: len(found := live_workers(run.ledger)) == 2 and run.ledger.commits.shards() and found)
    assert len(run.ledger.commits.shards()) < len(run.plan.shards)
    assert stop(run.ledger.url, patience_s=PATIENCE_S).living == 0
    # At once: their processes may not be gone yet, and are not those that go on.
    # Options that could run commands are not taken from the folder.
    given = {"engine_options": engine.get("engine_options", {})}
    resume(run.ledger.url, {**given, "detach": True})
    wait_for(lambda: live_workers(run.ledger))
    assert_complete(resume(run.ledger.url, given), 900)
    assert len(run.ledger.workers.read()) <= len(before) + 2


def begin(
    engine: Execution, tmp_path: Path, rows: int, delay_s: float = _SLOW_S, **execution: Any
) -> tuple[Ledger, Placement]:
    """Start two workers on `rows` rows that take a while."""
    spec = make_spec(tmp_path, {**engine, **execution}, rows, delay_s)
    ledger, placed = _plan(spec, tmp_path)
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger, placed.start(ledger.url)


def finish(placement: Placement, each: Callable[[], None] = lambda: None, timeout_s: float = PATIENCE_S) -> None:
    def ended() -> bool:
        each()
        return not placement.poll()

    try:
        wait_for(ended, timeout_s)
    finally:
        placement.stop()


def live_workers(ledger: Ledger) -> list[dict[str, Any]]:
    return [w for w in Run(ledger.url).status().workers if w["live"]]


def assert_complete(run: Run, rows: int) -> None:
    assert run.table(["id"]).column("id").to_pylist() == [r["id"] for r in fake_rows(rows)]
    report = run.verify()
    assert report.verified, report


def make_spec(tmp_path: Path, execution: Execution, rows: int, delay_s: float = _SLOW_S, **more: Any) -> Spec:
    source = tmp_path / "items.jsonl"
    if not source.exists():
        source.write_text("".join(json.dumps(row) + "\n" for row in fake_rows(rows)))
    settings = {"workers": 2, "batch_tokens": 300, **execution, **more}
    return fake_spec(source, params={"delay_s": delay_s}, **settings)


def _plan(spec: Spec, tmp_path: Path) -> tuple[Ledger, Engine]:
    engine: Engine
    if spec.execution.engine == LOCAL:
        engine = LocalEngine(devices_for(spec), max_restarts=spec.execution.max_restarts)
    else:
        engine = open_engine(spec.execution)
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, engine.devices))
    return ledger, engine
