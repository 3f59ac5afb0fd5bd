"""A run whose settings are not there yet: whoever starts it writes them after the plan, and may die in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import EXIT_TRY_AGAIN, Preempted
from shardmill.ledger import Ledger
from shardmill.ledger import ledger as ledgers
from shardmill.plan.spec import Spec
from shardmill.run import resume, start, work
from shardmill.run.planner import make_plan
from shardmill.testing import InProcessEngine
from shardmill.worker import Worker
from shardmill.worker.__main__ import main
from tests.support.corpora import fake_rows, fake_spec

CPU = Device("cpu", "cpu", 1)
ROWS = [*fake_rows(30), *[{"id": f"bad{i}", "text": "!nan"} for i in range(10)]]


@pytest.fixture
def spec(write_jsonl: Callable[..., Path]) -> Spec:
    return fake_spec(write_jsonl(ROWS), max_errors="100%", shard_bytes=500)


@pytest.fixture
def begun(spec: Spec, tmp_path: Path) -> Ledger:
    """A run whose starter died after it wrote the plan."""
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [CPU]))
    return ledger


@pytest.fixture
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "_SETTLING_S", 0.0)


@pytest.mark.usefixtures("in_no_time")
def test_nobody_works_without_settings(begun: Ledger, spec: Spec, capsys: pytest.CaptureFixture[str]) -> None:
    for begin in (lambda: Worker(begun, device=CPU), lambda: work(begun.url), lambda: resume(begun.url)):
        with pytest.raises(Preempted, match="no settings") as told:
            begin()
        assert told.value.exit_status == EXIT_TRY_AGAIN
        assert "Run the command that started it again" in told.value.hint
    assert main(["", begun.url]) == EXIT_TRY_AGAIN
    assert "no settings" in capsys.readouterr().err
    assert begun.state.is_wanted(), "the run has not failed"
    done = start(spec, begun.url, engine=InProcessEngine())
    assert done.status().errors == 10


@pytest.mark.usefixtures("in_no_time")
def test_settings_of_the_run_before_are_not_those_of_this_one(begun: Ledger, spec: Spec) -> None:
    begun.put_execution({**spec.execution.to_settings(), "places": ["/elsewhere/a.jsonl", "/elsewhere/b.jsonl"]})
    late = (Path(begun.url) / "execution.json").read_bytes()
    begun.start_over(begun.folder.read_plan() or pytest.fail("no plan"))
    begun.store.put("execution.json", late)
    assert [Path(f.place).name for f in Ledger(begun.url).plan().stat.files] == [Path(spec.work.source[0]).name]
    with pytest.raises(Preempted, match="no settings"):
        Worker(Ledger(begun.url), device=CPU)


def test_a_worker_waits_for_the_settings(begun: Ledger, spec: Spec) -> None:
    arrived = threading.Timer(0.3, begun.put_execution, [spec.execution.to_settings()])
    arrived.start()
    worker = Worker(Ledger(begun.url), device=CPU)
    assert worker.execution == spec.execution
    assert worker.work()
