"""Rows that cannot be done: found, set aside with a reason, and nothing else with them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import StoreError, TaskError, TooManyErrors, WorkerFailed
from shardmill.ledger import Ledger, Suspects
from shardmill.plan.spec import Spec
from shardmill.run import Run, start
from shardmill.run.planner import make_plan
from shardmill.sinks.parquet import ParquetSink
from shardmill.testing import FakeTask, InProcessEngine, fake_vector
from shardmill.worker import Worker
from tests.support import engine_contract as contract
from tests.support.corpora import fake_rows, fake_spec

Write = Callable[..., Path]


def _check(run: Run, rows: list[Any], bad: dict[int, str]) -> None:
    """All rows in order, vectors where they are due, an error record for each that has none."""
    table = run.table()
    assert table.num_rows == len(rows)
    for i, vector in enumerate(table.column("embedding").to_pylist()):
        assert (vector is None) == (i in bad), i
        if vector is not None:
            assert np.allclose(vector, fake_vector(rows[i]["text"]))
    seen = {e["row"]: e["reason"] for e in run.errors()}
    assert seen.keys() == bad.keys()
    for row, reason in bad.items():
        assert reason in seen[row]
    assert run.verify().verified


def test_a_row_that_raises_is_bisected_out(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(200)
    for i in (0, 77, 78, 199):
        rows[i]["text"] = f"{i} !raise"
    run = start(fake_spec(write_jsonl(rows)), tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, dict.fromkeys((0, 77, 78, 199), "ValueError: this text is poison"))


def test_a_row_that_is_not_finite_is_set_aside(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(50)
    rows[13]["text"] = "!nan"
    run = start(fake_spec(write_jsonl(rows)), tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, {13: "NaN"})


def test_unreadable_rows_have_their_line_in_the_file(tmp_path: Path, write_jsonl: Write) -> None:
    rows: list[Any] = fake_rows(200)
    lines: list[Any] = list(rows)
    lines[20] = '{"id": "k20", "text": "broken'
    lines[120] = {"id": "k120", "text": None}
    lines[121] = {"id": "k121", "text": "   "}
    lines[122] = {"id": "k122"}
    lines.insert(10, "")
    source = write_jsonl(lines)
    run = start(fake_spec(source), tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, {20: "broken JSON", 120: "'text' is null", 121: "blank", 122: "no field 'text'"})
    assert [e["line"] for e in run.errors()] == [22, 122, 123, 124]
    assert {e["file"] for e in run.errors()} == {source.name}
    assert next(run.errors())["id"] == {"id": "None"}


def test_memory_that_runs_out_makes_smaller_batches(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(200)
    spec = fake_spec(write_jsonl(rows), params={"fits": 150}, batch_tokens=4000)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, {})


def test_a_row_that_never_fits_is_set_aside(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(60)
    rows[7]["text"] = "y" * 300
    spec = fake_spec(write_jsonl(rows), params={"fits": 200}, batch_tokens=1000)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, {7: "does not fit into the device's memory, even alone"})


class Unopenable(FakeTask):
    """Cannot be opened."""

    def open(self, device: Device) -> None:
        raise LookupError("there is no ink")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"params": {"broken": "raise"}}, r"16 rows in a row failed, each alone: ValueError: .*__init__\.py, line \d+"),
        (
            {"task": f"{__name__}:Unopenable"},
            r"The task cannot be opened: LookupError: there is no ink \(test_poison_rows\.py, line \d+\)",
        ),
    ],
)
def test_a_task_that_always_fails_is_tried_once_more_and_not_taken_for_bad_rows(
    tmp_path: Path, write_jsonl: Write, what: dict[str, Any], said: str
) -> None:
    spec = fake_spec(write_jsonl(fake_rows(100)), workers=1, **what)
    with pytest.raises(WorkerFailed, match=said):
        start(spec, tmp_path / "run")
    ledger = Ledger(tmp_path / "run")
    assert ledger.commits.shards() == set()
    assert len(ledger.workers.read()) == 2


class UnopenableAtFirst(FakeTask):
    """Cannot be opened by the first worker."""

    def open(self, device: Device) -> None:
        with contextlib.suppress(FileExistsError):
            Path(os.environ["TMPDIR"], "tried").touch(exist_ok=False)
            raise LookupError("there is no ink")
        super().open(device)


def test_a_task_that_fails_once_is_tried_again(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rows = fake_rows(40)
    spec = fake_spec(write_jsonl(rows), task=f"{__name__}:UnopenableAtFirst", workers=1)
    _check(start(spec, tmp_path / "run"), rows, {})


def test_a_task_that_always_kills_is_not_taken_for_bad_rows(tmp_path: Path, write_jsonl: Write) -> None:
    source = write_jsonl(fake_rows(100))
    with pytest.raises(WorkerFailed, match=r"died 4 times in a row \(signal SIGKILL\)"):
        start(fake_spec(source, params={"broken": "kill"}), tmp_path / "many-shards")
    spec = fake_spec(source, params={"broken": "kill"}, max_restarts=5, shard_bytes=1_000_000)
    with pytest.raises(WorkerFailed, match="3 workers in a row died on a plain text"):
        start(spec, tmp_path / "run")
    assert Ledger(tmp_path / "run").commits.shards() == set()


def _planned(spec: Spec, run: Path) -> Ledger:
    ledger = Ledger(run)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger


def test_a_shard_is_run_again_once_the_device_is_mended(tmp_path: Path, write_jsonl: Write) -> None:
    """The verdict ends a run, but not the next: its first worker tries one plain text."""
    rows = fake_rows(40)
    spec = fake_spec(write_jsonl(rows), shard_bytes=1_000_000)
    ledger = _planned(spec, tmp_path / "run")
    ledger.suspects.put(0, Suspects(rows=(5,), probes=3))
    with pytest.raises(WorkerFailed, match="3 workers in a row died on a plain text"):
        Worker(Ledger(ledger.url), device=Device("cpu", "cpu")).work()
    assert ledger.leases.read() == {}
    _check(start(spec, tmp_path / "run", engine=InProcessEngine()), rows, {})


def test_a_claim_that_cannot_be_begun_is_given_back(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fake_rows(40)
    spec = fake_spec(write_jsonl(rows), shard_bytes=1_000_000)
    ledger = _planned(spec, tmp_path / "run")

    def refuse(*args: Any) -> None:
        raise StoreError("no part can be written")

    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "begin", refuse)
        with pytest.raises(StoreError, match="no part can be written"):
            Worker(Ledger(ledger.url), device=Device("cpu", "cpu")).work()
    assert ledger.leases.read() == {}


def test_many_long_rows_that_never_fit_are_not_taken_for_a_broken_device(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(300)
    for i in range(30):
        rows[i]["text"] = "y" * 300
    spec = fake_spec(write_jsonl(rows), params={"fits": 200}, batch_tokens=1000)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, dict.fromkeys(range(30), "even alone"))


def test_many_rows_that_raise_are_set_aside_while_others_run(tmp_path: Path, write_jsonl: Write) -> None:
    """The longest rows come first, so the first sixteen failures say nothing about the device."""
    rows = fake_rows(300)
    for i in range(40):
        rows[i]["text"] = "!raise" + "y" * 100
    run = start(fake_spec(write_jsonl(rows)), tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, dict.fromkeys(range(40), "this text is poison"))


def test_stops_in_good_order_convict_nobody(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(40)
    spec = fake_spec(write_jsonl(rows), shard_bytes=1_000_000, batch_tokens=1)
    ledger = _planned(spec, tmp_path / "run")
    ledger.suspects.put(0, Suspects(rows=(5,), strikes=1))
    for _ in range(5):
        worker = Worker(Ledger(ledger.url), device=Device("cpu", "cpu"))
        seen: list[int] = []

        def stop_at_fifth(step: str, shard: int, worker: Worker = worker, seen: list[int] = seen) -> None:
            seen.append(shard)
            if step == "batch" and len(seen) == 5:
                worker.stop()

        worker.on_step = stop_at_fifth
        assert not worker.work()
        assert ledger.suspects.get(0).strikes <= 1
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, {})


def test_a_text_that_cannot_be_prepared_is_set_aside(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(100)
    rows[42]["text"] = "!unpreparable"
    run = start(fake_spec(write_jsonl(rows)), tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, {42: "LookupError: no tokens for this"})


class ExtraRow(FakeTask):
    """Breaks the contract: a row too many."""

    def run(self, inputs: Any) -> Any:
        return super().run([*inputs, "one more"])


def test_a_task_that_gives_other_rows_than_it_was_given_is_refused(tmp_path: Path, write_jsonl: Write) -> None:
    spec = fake_spec(write_jsonl(fake_rows(10)))
    spec = spec.model_copy(update={"work": spec.work.model_copy(update={"task": f"{__name__}:ExtraRow"})})
    with pytest.raises(TaskError, match="returned 11 rows for 10 inputs"):
        start(spec, tmp_path / "run", engine=InProcessEngine())


def test_memory_that_runs_out_once_costs_one_halving(tmp_path: Path, write_jsonl: Write) -> None:
    rows = [{"id": f"k{i}", "text": f"{i:010d}"} for i in range(64)]
    spec = fake_spec(write_jsonl(rows), params={"fits": 80}, batch_tokens=640, shard_bytes=1_000_000)
    engine = InProcessEngine()
    run = start(spec, tmp_path / "run", engine=engine)
    _check(run, rows, {})
    assert run.ledger.workers.read()[0]["batch_budget"] >= 40


@pytest.mark.parametrize("poison", [[41], [3, 150]])
def test_a_row_that_kills_its_worker_is_hunted_down(tmp_path: Path, write_jsonl: Write, poison: list[int]) -> None:
    """Real workers under the local engine, each killed by the row, until the row is alone and convicted."""
    rows = fake_rows(160)
    for i in poison:
        rows[i]["text"] += "!kill"
    spec = fake_spec(write_jsonl(rows), shard_bytes=1_000_000)
    run = start(spec, tmp_path / "run")
    _check(run, rows, dict.fromkeys(poison, "crashed every worker that ran it"))
    assert list(run.ledger.store.list("suspects/")) == []


def test_a_row_that_ends_its_worker_with_status_0_is_hunted_down_too(tmp_path: Path) -> None:
    contract.a_row_that_ends_its_worker_is_set_aside({}, tmp_path)


def test_too_many_errors_stop_the_run_and_lose_nothing(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(3000)
    for i in range(1500, 3000, 10):
        rows[i]["text"] = ""
    source = write_jsonl(rows)
    with pytest.raises(TooManyErrors, match=r"over --max-errors 1%.*the last: the text is blank"):
        start(fake_spec(source, max_errors="1%"), tmp_path / "run", engine=InProcessEngine())
    done = Ledger(tmp_path / "run").commits.shards()
    assert done
    run = start(fake_spec(source, max_errors="5%"), tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, dict.fromkeys(range(1500, 3000, 10), "blank"))


def test_the_limit_holds_for_small_sources_too(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(20)
    rows[3]["text"] = ""
    source = write_jsonl(rows)
    with pytest.raises(TooManyErrors, match=r"1 of 20 rows failed \(5.0%\).*the last: the text is blank"):
        start(fake_spec(source, max_errors="1%"), tmp_path / "run", engine=InProcessEngine())
    run = start(fake_spec(source, max_errors="1"), tmp_path / "run", engine=InProcessEngine())
    _check(run, rows, {3: "blank"})


def test_a_task_can_be_given_ready_made(tmp_path: Path) -> None:
    made = FakeTask().run(["a", "b"])
    assert np.allclose(made.rows.column("embedding")[1].as_py(), fake_vector("b"))
