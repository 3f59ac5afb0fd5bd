"""A task that runs for hours on one item: it reports, keeps checkpoints, and goes on from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from shardmill import run as runs
from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.errors import TaskError
from shardmill.ledger import Ledger
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run
from shardmill.run.planner import make_plan
from shardmill.tasks.context import Context, Stopped
from shardmill.testing import CHECKPOINT_STEPS, STEPS, FakeContext, FakeLong, InProcessEngine, crash_at
from shardmill.worker import Worker
from tests.support.forking import Forking

processes = Forking()

LONG = "shardmill.testing:FakeLong"


def _spec(items: int = 5, params: dict[str, Any] | None = None, task: str = LONG, **execution: Any) -> Spec:
    work = {"source": f"range:0:{items}", "text": "sample_id", "id": "sample_id", "task": task, "params": params or {}}
    return make_spec(work, {"shard_bytes": 1, "lease_s": 5.0, **execution})


def _sum(item: int, steps: int = 4) -> int:
    return steps * (steps + 1) // 2 + steps * item


def _start(spec: Spec, out: Path) -> Run:
    return runs.start(spec, out, engine=InProcessEngine())


def test_every_item_is_worked_on_once(tmp_path: Path) -> None:
    run = _start(_spec(), tmp_path / "run")
    assert run.table().column("sum").to_pylist() == [_sum(i) for i in range(5)]
    assert run.table().column("resumed_at").to_pylist() == [0] * 5
    report = run.verify()
    assert report.verified, report
    assert "differ each time" in next(c.seen for c in report.checks if c.name == "sample")


def test_reports_stay_and_checkpoints_go(tmp_path: Path) -> None:
    run = _start(_spec(), tmp_path / "run")
    points = run.ledger.reports.read(3).points
    assert [(p.step, p.figures) for p in points] == [(n, {"sum": _sum(3, n)}) for n in (1, 2, 3, 4)]
    assert not list(run.ledger.store.list("checkpoints/"))


class Publishing(FakeLong):
    """Leaves a folder beside its row."""

    def work(self, item: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        with TemporaryDirectory() as made:
            (Path(made) / "deep").mkdir()
            (Path(made) / "card.md").write_text("a card")
            (Path(made) / "deep" / "weights").write_bytes(b"12345")
            context.publish(Path(made))
        return super().work(item, context)


def _lose(folder: Path) -> None:
    (folder / "card.md").unlink()


def _change(folder: Path) -> None:
    (folder / "deep" / "weights").write_bytes(b"12346")


@pytest.mark.parametrize(("harm", "said"), [(_lose, "model/card.md"), (_change, "model/deep/weights")])
def test_verify_finds_what_is_gone_or_changed_beside_the_rows(
    harm: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    run = _start(_spec(items=1, task=f"{__name__}:Publishing"), tmp_path / "run")
    assert {c.name: c.ok for c in run.verify().checks}["model"]
    harm(tmp_path / "run" / "model")
    report = run.verify()
    assert not report.verified
    assert [c.seen for c in report.checks if not c.ok] == [
        f"2 files, {said} is missing or was changed; with --fresh it is made again"
    ]


def test_an_item_is_set_aside_by_its_error(tmp_path: Path) -> None:
    run = _start(_spec(params={"faults": {"1": "!raise", "3": "!nan"}}, max_errors="2"), tmp_path / "run")
    assert run.table().column("sum").to_pylist() == [_sum(0), None, _sum(2), None, _sum(4)]
    assert {e["row"]: e["reason"] for e in run.errors()} == {
        1: "ValueError: this item is poison",
        3: "the loss is not a number",
    }
    assert run.verify().verified


def _crash(url: str, step: str, after: int) -> None:
    permission.allow([LONG])
    Worker(Ledger(url), device=Device("cpu", "cpu"), on_step=crash_at(step, after)).work()


@pytest.mark.parametrize("step", [*STEPS, *CHECKPOINT_STEPS])
def test_a_killed_item_goes_on_from_its_checkpoint(step: str, tmp_path: Path) -> None:
    spec = _spec(items=2)
    permission.allow(spec.work.code)
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.to_settings())
    # The second time is in the second half of the first item, or at the second item.
    process = processes.Process(target=_crash, args=(ledger.url, step, 1))
    process.start()
    process.join()
    assert process.exitcode == -9
    run = _start(spec, tmp_path / "run")
    assert run.table().column("sum").to_pylist() == [_sum(0), _sum(1)]
    if step in CHECKPOINT_STEPS:
        kept = {"checkpointing": 2, "checkpointed": 4}[step]
        assert sorted(run.table().column("resumed_at").to_pylist()) == [0, kept]
    assert run.verify().verified
    assert not list(run.ledger.store.list("checkpoints/"))


class Greedy(FakeLong):
    """Returns other columns than it says."""

    def work(self, item: Any, context: Context) -> Any:
        return {"sum": 1}


def test_a_row_of_other_columns_is_set_aside(tmp_path: Path) -> None:
    spec = _spec(items=1, task=f"{__name__}:Greedy", max_errors="1")
    run = _start(spec, tmp_path / "run")
    assert "returned ['sum'] and not ['resumed_at', 'sum']" in next(iter(run.errors()))["reason"]


class Careless(FakeLong):
    """Keeps what could run code when it is read."""

    def work(self, item: Any, context: Context) -> Any:
        context.keep(1, {"state.pkl": b"\x80"})
        return {}


def test_a_checkpoint_is_no_pickle(tmp_path: Path) -> None:
    run = _start(_spec(items=1, task=f"{__name__}:Careless", max_errors="1"), tmp_path / "run")
    assert "cannot have a file 'state.pkl'" in next(iter(run.errors()))["reason"]


def test_a_task_is_tested_without_a_run() -> None:
    task, context = FakeLong(), FakeContext()
    context.stop = True
    with pytest.raises(Stopped):
        task.work({"text": "7"}, context)
    context.stop = False
    assert task.work({"text": "7"}, context) == {"sum": _sum(7), "resumed_at": 1}
    with pytest.raises(TaskError):
        task.run([{"text": "7"}])
