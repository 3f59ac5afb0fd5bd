"""Workers seal what they commit, and one that joins late counts errors from segments."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import TooManyErrors
from shardmill.ledger import Ledger, segment
from shardmill.run.planner import make_plan
from shardmill.worker import Worker
from tests.support.corpora import fake_rows, fake_spec
from tests.support.counting import CountingStore
from tests.support.waiting import wait_for

Write = Callable[..., Path]
AT_ONCE = 5


def test_the_first_bad_row_of_a_late_worker_reads_segments(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "SEALED_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(segment.Segments, "is_turn", lambda segments, shards: True)
    rows = [{**row, "text": "!nan"} if i in (5, 950) else row for i, row in enumerate(fake_rows(1000))]
    spec = fake_spec(write_jsonl(rows), max_errors="1")
    ledger = Ledger(f"memory://{uuid.uuid4().hex}")
    plan = ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    shards = len(plan.shards)

    early = Worker(Ledger(ledger.url), device=Device("cpu", "cpu"))
    early.on_step = lambda step, shard: early.stop() if len(ledger.commits.shards()) >= shards - 5 else None
    early.work()
    wait_for(lambda: list(ledger.store.list("segments/")))
    done = len(ledger.commits.shards())
    wait_for(lambda: ledger.segments.catch_up(shards) or len(list(ledger.store.list("segments/"))) == done // AT_ONCE)

    monkeypatch.setattr(segment.Segments, "is_turn", lambda segments, shards: False)
    store: Any = CountingStore(ledger.url)
    late = Worker(Ledger(store), device=Device("cpu", "cpu"))
    with pytest.raises(TooManyErrors, match=r"2 of .* rows failed"):
        late.work()
    assert store.requests["get segments"] >= done // AT_ONCE
    assert store.requests["get commits"] < 2 * AT_ONCE < done
