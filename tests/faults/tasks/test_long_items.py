"""Long items whose workers are killed, hang, are stopped or lose a lease: nothing is lost, nobody is blamed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardmill import run as runs
from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.errors import EXIT_TRY_AGAIN, DeviceLost, TooManyErrors
from shardmill.engines.local import LocalEngine
from shardmill.ledger import Ledger
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run
from shardmill.run.planner import make_plan
from shardmill.tasks.context import Context, Stopped
from shardmill.testing import FakeLong, InProcessEngine
from shardmill.worker import Worker
from tests.support.forking import Forking
from tests.support.waiting import PATIENCE_S, wait_for

LONG = "shardmill.testing:FakeLong"
CPU = Device("cpu", "cpu", 1)


def _spec(items: int = 3, params: dict[str, Any] | None = None, task: str = LONG, **execution: Any) -> Spec:
    return make_spec({"items": items, "task": task, "params": params or {}}, {"lease_s": 5.0, **execution})


def _sum(item: int, steps: int = 4) -> int:
    return steps * (steps + 1) // 2 + steps * item


def _sums(run: Run) -> list[Any]:
    return run.table().column("sum").to_pylist()


def _prepare(spec: Spec, out: Path) -> Ledger:
    runs.prepare(spec, out)
    ledger = Ledger(out)
    ledger.plan()
    return ledger


def _worker(ledger: Ledger) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **permission.environment(), "SHARDMILL_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "shardmill.worker", ledger.url], env=environment)


# limits


def test_one_failed_item_in_many_is_no_failed_run(tmp_path: Path) -> None:
    run = runs.start(_spec(20, {"faults": {"7": "!raise"}}), tmp_path / "run", engine=InProcessEngine())
    assert _sums(run) == [None if i == 7 else _sum(i) for i in range(20)]
    assert run.ledger.execution()["max_errors"] == "50%"
    assert run.verify().verified


def test_a_run_whose_items_all_fail_ends_early(tmp_path: Path) -> None:
    faults = {str(i): "!raise" for i in range(40)}
    with pytest.raises(TooManyErrors, match="over --max-errors 50%; the last: ValueError: this item is poison"):
        runs.start(_spec(40, {"faults": faults}), tmp_path / "run", engine=InProcessEngine())
    assert len(Ledger(tmp_path / "run").commits.shards()) < 10


def test_the_users_limit_holds(tmp_path: Path) -> None:
    with pytest.raises(TooManyErrors, match="over --max-errors 0"):
        runs.start(_spec(3, {"faults": {"1": "!nan"}}, max_errors="0"), tmp_path / "run", engine=InProcessEngine())


# one shard at a time


class Watching(FakeLong):
    """Looks at the leases of its run while it works."""

    seen: list[int] = []  # noqa: RUF012
    ledger: Ledger

    def work(self, item: Any, context: Context) -> Any:
        time.sleep(0.3)
        self.seen.append(len(self.ledger.leases.read()))
        return super().work(item, context)


def test_a_busy_worker_holds_no_second_shard(tmp_path: Path) -> None:
    spec = _spec(3, task=f"{__name__}:Watching")
    Watching.ledger = Ledger(tmp_path / "run")
    Watching.seen.clear()
    runs.start(spec, tmp_path / "run", engine=InProcessEngine())
    assert Watching.seen == [1, 1, 1]


def test_a_slow_holder_is_not_shadowed(tmp_path: Path) -> None:
    ledger = _prepare(_spec(1), tmp_path / "run")
    holder = ledger.leases.take(0, "slow", 600.0)
    assert holder is not None
    late = Worker(Ledger(tmp_path / "run", lambda: time.time() + 500.0), device=CPU)
    assert late.choice.claim({}) is None
    assert ledger.leases.read()[0].shadow == ""


# progress


class Silent(FakeLong):
    """Says nothing, until it is told to end."""

    told = threading.Event()

    def work(self, item: Any, context: Context) -> Any:
        self.told.wait(PATIENCE_S)
        raise Stopped


def test_an_item_that_says_nothing_is_stuck(tmp_path: Path) -> None:
    ledger = _prepare(_spec(1, task=f"{__name__}:Silent", stuck_s=1.0), tmp_path / "run")
    ended: list[bool] = []
    worker = Worker(Ledger(ledger.url), device=CPU, on_stuck=lambda: ended.append(True))
    thread = threading.Thread(target=worker.work, daemon=True)
    thread.start()
    try:
        wait_for(lambda: ended)
    finally:
        worker.stop()
        Silent.told.set()
        thread.join(PATIENCE_S)


class Aging(FakeLong):
    """Makes its worker believe that hours pass before each call."""

    worker: Worker
    ages: list[float] = []  # noqa: RUF012

    def work(self, item: Any, context: Context) -> Any:
        for call in (lambda: context.report(1, {"loss": 0.5}), lambda: context.keep(1, {"state.json": b"{}"})):
            self.worker._pulse.progress_at -= 36_000.0
            call()
            self.ages.append(time.time() - self.worker._pulse.progress_at)
        return {"sum": 0, "resumed_at": 0}


def test_an_item_that_reports_or_keeps_is_not_stuck(tmp_path: Path) -> None:
    ledger = _prepare(_spec(1, task=f"{__name__}:Aging", stuck_s=1e9), tmp_path / "run")
    Aging.worker = Worker(Ledger(ledger.url), device=CPU)
    Aging.ages.clear()
    assert Aging.worker.work()
    assert len(Aging.ages) == 2
    assert max(Aging.ages) < 18_000.0


# deaths


class Dying(FakeLong):
    """Dies after each checkpoint, or before the first; `marks` counts the attempts."""

    def __init__(self, marks: str, steps: int = 7, keeps: bool = True) -> None:
        super().__init__(steps=steps, keep_every=1 if keeps else 100)
        self.marks, self.keeps = marks, keeps

    def work(self, item: Any, context: Context) -> Any:
        with open(self.marks, "a") as file:
            file.write(".")
        inner = DyingContext(context)
        made = super().work(item, inner if self.keeps else context)
        if not self.keeps:
            os.kill(os.getpid(), signal.SIGKILL)
        return made


class DyingContext:
    def __init__(self, own: Context) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def keep(self, step: int, files: Any) -> None:
        self._own.keep(step, files)
        os.kill(os.getpid(), signal.SIGKILL)


def test_an_item_whose_worker_dies_after_each_checkpoint_is_finished(tmp_path: Path) -> None:
    """Seven deaths: more than a crash loop has, and more than a convicted item has."""
    spec = _spec(1, {"marks": str(tmp_path / "marks")}, f"{__name__}:Dying")
    run = runs.start(spec, tmp_path / "run", engine=LocalEngine([CPU], max_restarts=1, stuck_s=600.0))
    assert _sums(run) == [_sum(0, 7)]
    assert len((tmp_path / "marks").read_text()) == 8
    assert not list(run.errors())


def test_an_item_that_kills_without_a_checkpoint_is_convicted(tmp_path: Path) -> None:
    spec = _spec(1, {"marks": str(tmp_path / "marks"), "keeps": False}, f"{__name__}:Dying", max_errors="1")
    run = runs.start(spec, tmp_path / "run", engine=LocalEngine([CPU], max_restarts=5, stuck_s=600.0))
    assert "crashed every worker" in next(iter(run.errors()))["reason"]
    assert len((tmp_path / "marks").read_text()) == 5


class Unlucky(Dying):
    """Loses its device after the first checkpoint."""

    def work(self, item: Any, context: Context) -> Any:
        first = not Path(self.marks).exists()
        Path(self.marks).touch()
        if first:
            context.keep(1, {"state.json": b'{"sum": 1}'})
            raise DeviceLost("the GPU has fallen off the bus")
        return FakeLong.work(self, item, context)


def test_an_item_whose_device_is_lost_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    spec = _spec(1, {"marks": str(tmp_path / "marks"), "steps": 4, "keeps": False}, f"{__name__}:Unlucky")
    run = runs.start(spec, tmp_path / "run", engine=LocalEngine([CPU], max_restarts=1, stuck_s=600.0))
    assert _sums(run) == [_sum(0)]
    assert run.table().column("resumed_at").to_pylist() == [1]


# stopping


def test_a_signal_lets_an_item_keep_what_it_has(tmp_path: Path) -> None:
    ledger = _prepare(_spec(1, {"steps": 100_000, "keep_every": 100_000, "delay_s": 0.01}), tmp_path / "run")
    worker = _worker(ledger)
    try:
        wait_for(lambda: len(ledger.reports.read(0).points) > 0)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == EXIT_TRY_AGAIN
    finally:
        worker.kill()
        worker.wait()
    kept = ledger.checkpoints.find(0)
    assert kept is not None
    assert kept.step >= 1
    assert ledger.leases.read() == {}
    heir = ledger.claim("heir", 1, lease_s=60.0)
    assert heir is not None
    assert heir.crashes == 0


def test_a_stopped_run_lets_an_item_keep_what_it_has(tmp_path: Path) -> None:
    ledger = _prepare(_spec(1, {"steps": 100_000, "keep_every": 100_000, "delay_s": 0.01}), tmp_path / "run")
    worker = Worker(Ledger(ledger.url), device=CPU)
    thread = threading.Thread(target=worker.work, daemon=True)
    thread.start()
    wait_for(lambda: len(ledger.reports.read(0).points) > 0)
    assert runs.stop(ledger.url).state == "stopped"
    thread.join(PATIENCE_S)
    assert ledger.checkpoints.find(0) is not None
    assert ledger.leases.read() == {}


def test_who_lost_its_lease_stops_and_keeps_nothing(tmp_path: Path) -> None:
    ledger = _prepare(_spec(1, {"steps": 400, "keep_every": 400, "delay_s": 0.01}, lease_s=1.0), tmp_path / "run")
    worker = Worker(Ledger(ledger.url), device=CPU)
    thread = threading.Thread(target=worker.work, daemon=True)
    thread.start()
    wait_for(lambda: len(ledger.reports.read(0).points) > 0)
    ledger.leases.record_death(worker.name)
    heir = ledger.claim("heir", 1, lease_s=600.0)
    assert heir is not None
    wait_for(lambda: not worker._shards.held())
    assert ledger.checkpoints.find(0) is None
    assert ledger.commits.shards() == set()
    assert ledger.leases.read()[0].worker == "heir"
    worker.stop()
    thread.join(PATIENCE_S)


class Replaced(FakeLong):
    """Finds that another leads its gang before it hears that it has lost its lease."""

    taken_by: Callable[[], None]

    def work(self, item: Any, context: Context) -> Any:
        type(self).taken_by()
        raise Stopped


def test_who_is_replaced_before_it_hears_of_its_lease_ends_as_one_that_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = _prepare(_spec(1, task=f"{__name__}:Replaced", lease_s=600.0), tmp_path / "run")
    worker = Worker(Ledger(ledger.url), device=CPU)
    taken = threading.Event()

    def take() -> None:
        ledger.leases.record_death(worker.name)
        assert ledger.claim("heir", 1, lease_s=600.0) is not None
        taken.set()

    monkeypatch.setattr(Replaced, "taken_by", staticmethod(take), raising=False)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(worker.work)
        assert taken.wait(PATIENCE_S)
        wait_for(lambda: ended.done() or not worker._shards.held())
        worker.stop()
        assert ended.result(PATIENCE_S) is False
    assert ledger.commits.shards() == set()
    assert ledger.leases.read()[0].worker == "heir"


# more items


def test_items_are_added_later(tmp_path: Path) -> None:
    then = f"merge:{tmp_path / 'all.parquet'}"
    first = runs.start(_spec(2, then=[then]), tmp_path / "run", engine=InProcessEngine())
    more = runs.start(_spec(5, then=[then]), tmp_path / "run", engine=InProcessEngine())
    assert (more.plan.id, more.plan.generation) == (first.plan.id, first.plan.generation)
    assert _sums(more) == [_sum(i) for i in range(5)]
    assert more.verify().verified
    import pyarrow.parquet as pq

    assert pq.read_table(tmp_path / "all.parquet").num_rows == 5
    with pytest.raises(Exception, match="had 5 items and has 4: they can be raised, not lowered"):
        runs.start(_spec(4), tmp_path / "run", engine=InProcessEngine())


def test_a_waiting_worker_sees_items_that_are_added(tmp_path: Path) -> None:
    ledger = _prepare(_spec(1), tmp_path / "run")
    held = ledger.leases.take(0, "other", 600.0)
    assert held is not None
    worker = Worker(Ledger(ledger.url), device=CPU)
    thread = threading.Thread(target=worker.work, daemon=True)
    thread.start()
    ledger.grow(make_plan(_spec(3), [CPU]))
    wait_for(lambda: ledger.commits.shards() == {1, 2})
    ledger.leases.release(held, "other")
    thread.join(PATIENCE_S)
    assert ledger.commits.shards() == {0, 1, 2}


def _grow(url: str, items: int) -> None:
    permission.allow([LONG])
    ledger = Ledger(url)
    ledger.plan()
    ledger.grow(make_plan(_spec(items), [CPU]))


def test_plans_that_grow_at_once_leave_the_largest(tmp_path: Path) -> None:
    ledger = _prepare(_spec(1), tmp_path / "run")
    growing = [Forking().Process(target=_grow, args=(ledger.url, items)) for items in (4, 9, 6)]
    for process in growing:
        process.start()
    for process in growing:
        process.join()
    assert len(ledger.plan().shards) == 9


@pytest.mark.parametrize("wrong", [{"items": 3, "source": "range:0:3"}, {"items": 3, "text": "x"}])
def test_items_and_a_source_are_not_both_given(wrong: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="Both items and a"):
        make_spec({"task": LONG, **wrong})


# what others see


def test_status_shows_the_last_report(tmp_path: Path, shardmill: Callable[..., Any]) -> None:
    ledger = _prepare(_spec(1, {"steps": 100_000, "keep_every": 100_000, "delay_s": 0.01}), tmp_path / "run")
    worker = Worker(Ledger(ledger.url), device=CPU)
    thread = threading.Thread(target=worker.work, daemon=True)
    thread.start()
    try:
        wait_for(lambda: any(w["open"].get("0", {}).get("step") for w in Run(ledger.url).status().workers))
        said = shardmill("status", tmp_path / "run").out
        assert "shard    0 at step " in said
        assert " · sum " in said
    finally:
        worker.stop()
        thread.join(PATIENCE_S)


def test_workers_that_do_not_work_together_have_no_least_number(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="do not work on one item together"):
        runs.start(_spec(1, workers="2:3"), tmp_path / "run", engine=InProcessEngine())
