"""The instants around a commit: what fails there must not take back what was promised."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import Preempted, StoreError
from shardmill.ledger import Ledger
from shardmill.run import Run, start
from shardmill.run.planner import make_plan
from shardmill.store import LocalStore
from shardmill.testing import InProcessEngine
from shardmill.worker import Worker
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S

Write = Callable[..., Path]


def _place(run: Path, spec: Any) -> Ledger:
    ledger = Ledger(run)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger


class FlakyStore(LocalStore):
    """Does what it is asked and then, once, says that it did not."""

    def __init__(self, root: Path, method: str, prefix: str) -> None:
        super().__init__(root)
        self._method, self._prefix, self._armed = method, prefix, True

    def _answer(self, method: str, key: str, result: Any) -> Any:
        if self._armed and method == self._method and key.startswith(self._prefix):
            self._armed = False
            raise StoreError(f"{key}: timed out after it was sent")
        return result

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return bool(self._answer("put_if_absent", key, super().put_if_absent(key, data)))

    def delete(self, key: str) -> None:
        self._answer("delete", key, super().delete(key))


@pytest.mark.parametrize(
    ("method", "prefix"),
    [("put_if_absent", "commits/"), ("delete", "leases/"), ("delete", "suspects/"), ("put_if_absent", "leases/")],
)
def test_a_store_that_fails_around_a_commit_takes_nothing_back(
    tmp_path: Path, write_jsonl: Write, method: str, prefix: str
) -> None:
    rows = fake_rows(100)
    spec = fake_spec(write_jsonl(rows))
    ledger = _place(tmp_path / "run", spec)
    worker = Worker(Ledger(FlakyStore(tmp_path / "run", method, prefix)), device=Device("cpu", "cpu"))
    with contextlib.suppress(StoreError):
        worker.work()
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert run.table().column("id").to_pylist() == [r["id"] for r in rows]
    assert run.verify().verified
    assert len(ledger.commits.read()) == len(run.plan.shards)


def test_a_worker_from_before_a_fresh_start_cannot_commit_into_the_new_run(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fake_rows(100)
    source = write_jsonl(rows)
    old = _place(tmp_path / "run", fake_spec(source, params={"version": "1"}))
    stale = Worker(Ledger(old.url), device=Device("cpu", "cpu"), name="stale")
    monkeypatch.setattr(stale.ledger.state, "refusal", lambda: None)
    new = fake_spec(source, params={"version": "2", "dims": 16})
    run = start(new, tmp_path / "run", fresh=True, engine=_Interrupting(stale))
    assert run.table().schema.field("embedding").type.list_size == 16
    assert run.verify().verified
    assert all(c.worker != "stale" for c in run.ledger.commits.read().values())


class _Interrupting(InProcessEngine):
    """Lets a stale worker, which does not look at the state, do all it can before the new ones begin."""

    def __init__(self, stale: Worker) -> None:
        super().__init__()
        self._stale = stale

    def start(self, run: str) -> InProcessEngine:
        self._stale.work()
        return super().start(run)


def test_a_worker_notices_that_its_run_was_begun_anew(tmp_path: Path, write_jsonl: Write) -> None:
    source = write_jsonl(fake_rows(3000))
    spec = fake_spec(source, params={"delay_s": 0.02}, batch_tokens=100, lease_s=1.0)
    ledger = _place(tmp_path / "run", spec)
    worker = subprocess.Popen([sys.executable, "-m", "shardmill.worker", ledger.url])
    deadline = time.monotonic() + PATIENCE_S
    while not ledger.commits.shards() and time.monotonic() < deadline:
        time.sleep(0.05)
    ledger.start_over(ledger.plan())
    _place(tmp_path / "run", spec)
    assert worker.wait(PATIENCE_S) == 75


def test_a_source_that_was_moved_is_read_where_it_is_now(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(100)
    source = write_jsonl(rows)
    spec = fake_spec(source)
    _place(tmp_path / "run", spec)
    (tmp_path / "elsewhere").mkdir()
    moved = source.rename(tmp_path / "elsewhere" / source.name)
    run = start(fake_spec(moved), tmp_path / "run", engine=InProcessEngine())
    assert run.verify().verified
    assert Run(tmp_path / "run").table().num_rows == 100


def test_workers_that_were_told_to_stop_leave_status_75(tmp_path: Path, write_jsonl: Write) -> None:
    class Stopping(InProcessEngine):
        def start(self, run: str) -> InProcessEngine:
            worker = Worker(Ledger(run), device=Device("cpu", "cpu"))
            worker.on_step = lambda step, shard: worker.stop() if step == "committed" else None
            worker.work()
            return self

    with pytest.raises(Preempted, match="told to stop") as caught:
        start(fake_spec(write_jsonl(fake_rows(300))), tmp_path / "run", engine=Stopping())
    assert caught.value.exit_status == 75
