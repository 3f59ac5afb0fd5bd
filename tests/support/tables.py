"""Loads into a table, by workers in processes that can be killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.plan.spec import Spec, make_spec
from shardmill.run.planner import make_plan, result_schema
from shardmill.sinks.table import prepare
from shardmill.worker import Worker
from tests.support.corpora import fake_rows
from tests.support.forking import Forking
from tests.support.services import PostgresServer
from tests.support.waiting import PATIENCE_S

ROWS = fake_rows(240)
processes = Forking()


def table_spec(source: Path, url: str, table: str, **settings: Any) -> Spec:
    """A load without an index, unless one is asked for: most tests are about rows."""
    to = {"url": url, "table": table, **{k: settings.pop(k) for k in ("mode", "changed_only") if k in settings}}
    work = {"source": str(source), "text": "text", "id": "id", "keep": settings.pop("keep", "text"), "to": to}
    limits = {"shard_bytes": 4_000, "batch_rows": 16, "batch_tokens": 400, "lease_s": 5.0, "max_errors": "100%"}
    params, settings = settings.pop("params", {}), {"index": "none", **settings}
    return make_spec({**work, "task": "shardmill.testing:FakeTask", "params": params}, {**limits, **settings})


def place(spec: Spec, folder: Path) -> str:
    """A run that is planned and whose table is made; no worker is at it."""
    plan = make_plan(spec, [Device("cpu", "cpu")])
    ledger = Ledger(str(folder))
    prepare(plan, result_schema(plan))
    ledger.create(plan)
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return str(folder)


def work_at(run: str, hook: Callable[[str, int], None] | None = None) -> None:
    Worker(Ledger(run), device=Device("cpu", "cpu"), **({} if hook is None else {"on_step": hook})).work()


def start_process(target: Callable[..., None], *args: Any) -> Any:
    process = processes.Process(target=target, args=args)
    process.start()
    return process


def finish_process(process: Any) -> int:
    process.join(PATIENCE_S)
    assert process.exitcode is not None, "the worker hangs"
    return int(process.exitcode)


def spare_the_disk(server: PostgresServer) -> None:
    """A process that is killed takes nothing from the system's cache with it."""
    server.execute("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")


def count_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from shardmill.testing import FakeTask

    seen: list[str] = []
    run = FakeTask._run
    monkeypatch.setattr(FakeTask, "_run", lambda self, inputs: seen.extend(inputs) or run(self, inputs))
    return seen
