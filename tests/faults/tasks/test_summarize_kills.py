"""A worker that summarizes is killed at each step: the rows are those of a run that nobody disturbed."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.devices import Device
from shardmill.ledger import Ledger
from shardmill.planner import make_plan, result_schema
from shardmill.run import Run
from shardmill.run.summaries import start_groups
from shardmill.sinks.table import prepare
from shardmill.spec import Spec, make_spec
from shardmill.testing import STEPS, TABLE_STEPS, InProcessEngine, crash_at
from shardmill.worker import Worker
from tests.support.services import PostgresServer
from tests.support.summaries import NEWS, write_encoder
from tests.support.waiting import PATIENCE_S

LIMITS = {
    "shard_bytes": 500,
    "max_errors": "0",
    "lease_s": 5.0,
    "precision": "float32",
    "batch_rows": 2,
    "index": "none",
}
ROWS = [{**row, "id": 10 * copy + row["id"]} for copy in range(2) for row in NEWS]
processes = multiprocessing.get_context("forkserver")
# What takes long to import is imported once.
processes.set_forkserver_preload(
    [
        "tests.support.summaries",
        "shardmill.testing",
        "shardmill.tasks.summarize.extractive",
        "shardmill.models.kernels",
        "shardmill.models.tokenizer",
        "shardmill.sources.lines",
        "transformers.models.bert.modeling_bert",
        "pyarrow.parquet",
        "psycopg",
    ]
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "model")


def _work(run: str, step: str | None = None, after: int = 1) -> None:
    hook: dict[str, Any] = {} if step is None else {"on_step": crash_at(step, after)}
    Worker(Ledger(run), device=Device("cpu", "cpu"), **hook).work()


def _finish(*words: Any) -> int:
    process = processes.Process(target=_work, args=words)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode is not None, "the worker hangs"
    return int(process.exitcode)


def _spec(source: Path, model: Path, **more: Any) -> Spec:
    work = {"source": str(source), "text": "article", "id": "id", "task": "summarize"}
    return make_spec({**work, "params": {"model": str(model), "sentences": 2}, **more}, LIMITS)


def _place(spec: Spec, folder: Path) -> str:
    ledger = Ledger(folder)
    plan = make_plan(spec, [Device("cpu", "cpu")])
    if plan.work.to is not None:
        prepare(plan, result_schema(plan))
    ledger.create(plan)
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger.url


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, model: Path) -> pa.Table:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    _work(run := _place(_spec(folder / "items.jsonl", model), folder / "run"))
    assert len(Run(run).plan.shards) > 2
    return Run(run).table()


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step(
    tmp_path: Path, write_jsonl: Callable[..., Path], model: Path, undisturbed: pa.Table, step: str
) -> None:
    run = _place(_spec(write_jsonl(ROWS), model), tmp_path / "run")
    assert _finish(run, step) == -signal.SIGKILL
    assert _finish(run) == 0
    assert Run(run).table() == undisturbed
    assert Run(run).verify(sample=0).verified


def test_a_kill_between_items_and_groups(tmp_path: Path, write_jsonl: Callable[..., Path], model: Path) -> None:
    """Whichever run it was in, the same call ends both."""
    work: dict[str, Any] = {
        **_spec(write_jsonl(ROWS), model).work.model_dump(mode="json", exclude={"to", "fields", "query"}),
        "group_by": "topic",
    }
    expected = start_groups(work, LIMITS, tmp_path / "undisturbed", engine=InProcessEngine()).table()
    out = tmp_path / "run"
    for step, after in (("staged", 2), ("committing", 0)):
        process = processes.Process(target=_work_on_groups, args=(work, str(out), step, after))
        process.start()
        process.join(PATIENCE_S)
        assert process.exitcode == -signal.SIGKILL
    run = start_groups(work, LIMITS, out, engine=InProcessEngine())
    assert run.table() == expected
    assert Run(f"{out}-items").verify(sample=0).verified


def _work_on_groups(work: dict[str, Any], out: str, step: str, after: int) -> None:
    start_groups(work, LIMITS, out, engine=InProcessEngine(on_step=crash_at(step, after)))


@pytest.mark.services
@pytest.mark.parametrize("step", ["batch", *TABLE_STEPS])
def test_a_kill_while_a_table_is_loaded(
    postgres: PostgresServer,
    tmp_path: Path,
    write_jsonl: Callable[..., Path],
    model: Path,
    undisturbed: pa.Table,
    step: str,
) -> None:
    table = f"summaries_{step.replace('-', '_')}"
    to = {"url": postgres.url(), "table": table}
    run = _place(_spec(write_jsonl(ROWS), model, to=to), tmp_path / "run")
    assert _finish(run, step) == -signal.SIGKILL
    assert _finish(run) == 0
    found = postgres.execute(f"SELECT id, summary, starts FROM {table} ORDER BY id")
    assert found == [tuple(row.values()) for row in undisturbed.select(["id", "summary", "starts"]).to_pylist()]
    report = Run(run).verify(sample=0)
    assert report.verified, report
