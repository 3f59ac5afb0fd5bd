"""A function that gives several rows or none, killed at each step: the result is that of a run nobody disturbed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run
from shardmill.run.planner import make_plan
from shardmill.sinks import keeping
from shardmill.testing import KEEPING_STEPS, STEPS, TABLE_STEPS, InProcessEngine, crash_at
from tests.support import functions
from tests.support.corpora import fake_rows
from tests.support.services import PostgresServer
from tests.support.tables import finish_process, place, spare_the_disk, start_process, work_at

ROWS = fake_rows(150)
SETTINGS = {
    "shard_bytes": 1_500,
    "lease_s": 5.0,
    "max_restarts": 100,
    "batch_rows": 4,
    "batch_tokens": 8,
    "index": "none",
}


def _spec(folder: Path, to: dict[str, str] | None = None, made: Any = functions.split) -> Spec:
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    spec = make_spec({"source": str(source), "id": "id", "task": made, **({"to": to} if to else {})}, SETTINGS)
    permission.allow(spec.work.code)
    return spec


def _place(spec: Spec, out: Path) -> str:
    ledger = Ledger(out)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.to_settings())
    return ledger.url


def _finish(run: str) -> Run:
    InProcessEngine().start(run)
    opened = Run(run)
    report = opened.verify()
    assert report.verified, report
    return opened


def _kill_at_each(run: str, steps: tuple[str, ...], keep_every_s: float | None = None) -> None:
    for step in steps:
        ended = finish_process(start_process(_work_until, run, step, keep_every_s))
        assert ended == -signal.SIGKILL, f"the worker did not reach {step}"


def _work_until(run: str, step: str, keep_every_s: float | None) -> None:
    permission.allow(Ledger(run).plan().code)
    if keep_every_s is not None:
        keeping.KEEP_EVERY_S = keep_every_s
    work_at(run, crash_at(step))


def _undisturbed(folder: Path) -> pa.Table:
    return _finish(_place(_spec(folder), folder / "undisturbed")).table()


def test_a_run_killed_once_at_each_step(tmp_path: Path) -> None:
    run = _place(_spec(tmp_path), tmp_path / "run")
    _kill_at_each(run, STEPS)
    assert _finish(run).table() == _undisturbed(tmp_path)


def test_items_without_a_row_are_kept_too(tmp_path: Path) -> None:
    run = _place(_spec(tmp_path, made=functions.nothing), tmp_path / "run")
    _kill_at_each(run, KEEPING_STEPS, 0.0)
    assert _finish(run).status().dropped == len(ROWS)


def test_rows_that_were_kept_before_a_kill_count_what_fell_away(tmp_path: Path) -> None:
    run = _place(_spec(tmp_path), tmp_path / "run")
    _kill_at_each(run, KEEPING_STEPS, 0.0)
    done = _finish(run)
    assert done.table() == _undisturbed(tmp_path)
    assert done.status().dropped == Run(tmp_path / "undisturbed").status().dropped > 0


@pytest.mark.services
def test_a_table_killed_once_at_each_step(postgres: PostgresServer, tmp_path: Path) -> None:
    spare_the_disk(postgres)
    spec = _spec(tmp_path, {"url": postgres.url(), "table": "applied"})
    run = place(spec, tmp_path / "run")
    _kill_at_each(run, TABLE_STEPS)
    done = _finish(run)
    whole = _undisturbed(tmp_path).select(["id", "piece", "letters"])
    found = postgres.execute('SELECT id, piece, letters FROM applied ORDER BY substr(id, 2)::int, "window"')
    assert found == [tuple(row.values()) for row in whole.to_pylist()]
    assert done.status().dropped == Run(tmp_path / "undisturbed").status().dropped > 0
