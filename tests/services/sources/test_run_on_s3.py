"""In a real S3 store: rows are kept and taken back, and the run is the source of the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.run.planner import make_plan
from shardmill.sinks import keeping
from shardmill.sources import batches
from shardmill.testing import InProcessEngine
from shardmill.worker import Worker
from tests.support.corpora import fake_rows, fake_spec

pytestmark = pytest.mark.services


class _Dead(Exception):
    pass


def test_kept_rows_and_a_run_as_a_source(
    folder: str, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "KEEP_EVERY_S", 0.0)
    monkeypatch.setattr(batches, "BATCH_ROWS", 4)
    rows = fake_rows(40)
    work = {"source": str(write_jsonl(rows)), "text": "text", "id": "id", "keep": "text"}
    spec = make_spec({**work, "task": "shardmill.testing:FakeTask"}, {"shard_bytes": 1000})
    ledger = Ledger(f"{folder}/first")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    kept: list[int] = []

    def die(step: str, shard: int) -> None:
        if step == "kept":
            kept.append(shard)
            if len(kept) == 3:
                raise _Dead

    with pytest.raises(_Dead):
        Worker(Ledger(ledger.url), device=Device("cpu", "cpu"), on_step=die).work()
    assert len(ledger.kept.find(0)) == 3
    worker = Worker(Ledger(ledger.url), device=Device("cpu", "cpu"))
    assert worker.work()
    assert worker._tally.rows == len(rows) - 12
    assert list(ledger.store.list("kept/")) == []
    first = Run(ledger.url)
    assert first.verify().verified
    second = start(fake_spec(f"run:{ledger.url}"), f"{folder}/second", engine=InProcessEngine())
    assert second.table().equals(first.table().select(second.table().column_names))
    assert second.verify().verified
