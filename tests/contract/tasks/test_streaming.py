"""A task that streams: rows join and leave across blocks and shards, and whatever fails costs only itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shardmill import run as runs
from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.errors import EndpointSilent, ShardmillError, TaskError
from shardmill.ledger import Ledger
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run
from shardmill.run.planner import make_plan
from shardmill.tasks.base import Output, Task
from shardmill.testing import STEPS, FakeStream, InProcessEngine, crash_at
from shardmill.worker import Worker
from tests.support.forking import Forking
from tests.support.waiting import PATIENCE_S

processes = Forking()

STREAM = "shardmill.testing:FakeStream"
ROWS = [{"id": i, "text": " ".join(f"w{i}.{n}" for n in range(1 + i * 7 % 13)), "tag": f"t{i % 3}"} for i in range(150)]


def _spec(source: Path, task: str = STREAM, params: dict[str, Any] | None = None, **execution: Any) -> Spec:
    work = {"source": str(source), "text": "text", "id": "id", "task": task, "params": params or {}}
    return make_spec(work, {"shard_bytes": 1_500, "max_errors": "100%", "lease_s": 5.0, **execution})


def _answer(row: dict[str, Any]) -> str:
    return " ".join(reversed(row["text"].split()))


def _start(spec: Spec, out: Path) -> Run:
    return runs.start(spec, out, engine=InProcessEngine())


@pytest.mark.parametrize("seats", [1, 4, 64])
def test_every_row_comes_out_once_and_in_place(seats: int, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    run = _start(_spec(write_jsonl(ROWS), params={"seats": seats}), tmp_path / "run")
    table = run.table()
    assert table.column("id").to_pylist() == [row["id"] for row in ROWS]
    assert table.column("answer").to_pylist() == [_answer(row) for row in ROWS]
    words = sum(len(row["text"].split()) for row in ROWS)
    status = run.status()
    assert (status.tokens, status.tokens_out) == (words, words)
    assert status.shards > 3
    assert run.verify().verified


def test_a_column_that_only_the_task_reads_is_not_kept(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    run = _start(_spec(write_jsonl(ROWS), params={"field": "tag"}), tmp_path / "run")
    table = run.table()
    assert table.column_names == ["row", "id", "answer", "finish_reason"]
    assert table.column("answer").to_pylist() == [f"{row['tag']}:{_answer(row)}" for row in ROWS]
    report = run.verify()
    assert report.verified, report
    assert "64 of 150 rows computed again in float32 on the CPU are equal" in next(
        c.seen for c in report.checks if c.name == "sample"
    )


def test_memory_that_runs_out_costs_no_finished_row(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    rows = [*ROWS, {"id": 150, "text": " ".join(["long"] * 40), "tag": ""}]
    run = _start(_spec(write_jsonl(rows), params={"seats": 16, "fits": 30}), tmp_path / "run")
    assert run.table().column("answer").to_pylist() == [*map(_answer, ROWS), None]
    errors = list(run.errors())
    assert [error["id"] for error in errors] == [{"id": "150"}]
    assert "does not fit into the device's memory, even alone" in errors[0]["reason"]


def test_a_poison_row_among_others_is_found(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    rows = [dict(row) for row in ROWS]
    rows[40]["text"], rows[41]["text"], rows[90]["text"] = "a !raise b", "no !bad answer", "!raise"
    run = _start(_spec(write_jsonl(rows), params={"seats": 8}), tmp_path / "run")
    reasons = {int(error["id"]["id"]): error["reason"] for error in run.errors()}
    assert reasons == {
        40: "ValueError: this text is poison",
        41: "the model has no answer",
        90: "ValueError: this text is poison",
    }
    answers = run.table().column("answer").to_pylist()
    assert answers == [None if i in reasons else _answer(row) for i, row in enumerate(rows)]


def _work(run: str, step: str = "", after: int = 0) -> None:
    hook = {"on_step": crash_at(step, after)} if step else {}
    Worker(Ledger(run), device=Device("cpu", "cpu"), **hook).work()  # type: ignore[arg-type]


def _in_process(*args: Any) -> int:
    process = processes.Process(target=_work, args=args)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode is not None
    return int(process.exitcode)


def _plan(spec: Spec, out: Path) -> str:
    ledger = Ledger(out)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger.url


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_each_step(step: str, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    run = _plan(_spec(write_jsonl(ROWS), params={"seats": 8}, max_restarts=240), tmp_path / "run")
    assert _in_process(run, step, 1) == -9
    assert _in_process(run) == 0
    assert Run(run).table().column("answer").to_pylist() == [_answer(row) for row in ROWS]
    assert Run(run).verify().verified


def test_a_row_that_kills_is_set_aside_after_a_few_deaths(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    rows = [dict(row) for row in ROWS[:40]]
    rows[7]["text"] = "this !kill ends"
    run = _plan(_spec(write_jsonl(rows), params={"seats": 8}, max_restarts=240), tmp_path / "run")
    deaths = 0
    while _in_process(run) != 0:
        deaths += 1
        assert deaths < 25
    assert [error["id"] for error in Run(run).errors()] == [{"id": "7"}]
    assert Run(run).table().column("answer").to_pylist() == [
        None if i == 7 else _answer(row) for i, row in enumerate(rows)
    ]


class Forgets(FakeStream):
    """Ends its stream though rows are open."""

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        next(inputs)
        return iter(())


def test_a_stream_that_forgets_rows_is_refused(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    with pytest.raises(TaskError, match="ended its stream with 1 inputs open"):
        _start(_spec(write_jsonl(ROWS), task=f"{__name__}:Forgets"), tmp_path / "run")


class ServerAway(FakeStream):
    """Answers once, and then the server behind it is away."""

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        yield next(super().stream(inputs))
        raise EndpointSilent("nobody answers")


def test_a_server_that_is_away_is_the_fault_of_no_row(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    permission.allow([f"{__name__}:ServerAway"])
    run = _plan(_spec(write_jsonl(ROWS), task=f"{__name__}:ServerAway"), tmp_path / "run")
    with pytest.raises(EndpointSilent):
        _work(run)
    assert list(Run(run).errors()) == []
    assert Ledger(run).leases.read() == {}


class WaitsForever(FakeStream):
    """Waits for others after its first input, and says so by empty groups."""

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        next(inputs)
        while True:
            waiting.set()
            time.sleep(0.01)
            yield [], self._answer([])


waiting = threading.Event()


def test_a_worker_whose_task_waits_can_be_stopped(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    permission.allow([f"{__name__}:WaitsForever"])
    run = _plan(_spec(write_jsonl(ROWS), task=f"{__name__}:WaitsForever"), tmp_path / "run")
    worker = Worker(Ledger(run), device=Device("cpu", "cpu"))
    threading.Thread(target=lambda: (waiting.wait(), worker.stop()), daemon=True).start()
    assert worker.work() is False


class NeverBegins(FakeStream):
    """Fails before it takes a row."""

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        raise RuntimeError("the model is not there")


class NoStream(FakeStream):
    """Says that it streams, and does not."""

    stream = Task.stream


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("task", "said"),
    [("NeverBegins", "failed before it took a row: RuntimeError: the model is not there"), ("NoStream", "no stream")],
)
def test_a_stream_that_never_begins_ends_the_worker(
    task: str, said: str, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    with pytest.raises(ShardmillError, match=said):
        _start(_spec(write_jsonl(ROWS), task=f"{__name__}:{task}"), tmp_path / "run")
    assert not Ledger(tmp_path / "run").commits.shards()
