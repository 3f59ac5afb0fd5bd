"""A worker that is told to stop gives its leases back first, whatever its other threads do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.errors import EXIT_TRY_AGAIN
from shardmill.ledger import Claim, Ledger
from shardmill.plan.spec import make_spec
from shardmill.run.planner import make_plan
from shardmill.worker.channel import Stopped
from shardmill.worker.shards import OpenShards
from shardmill.worker.tally import Tally
from tests.support.corpora import fake_rows
from tests.support.ledgers import a_plan
from tests.support.waiting import PATIENCE_S, wait_for


@pytest.fixture(params=["run", "prepare"])
def busy(request: pytest.FixtureRequest, tmp_path: Path, write_jsonl: Callable[..., Path]) -> Iterator[Any]:
    """A ledger, and its worker process with one thread in native code that does not return."""
    mark = tmp_path / "mark"
    work = {"source": str(write_jsonl(fake_rows(20))), "text": "text", "task": "tests.support.native:NativeTask"}
    spec = make_spec({**work, "params": {"where": request.param, "mark": str(mark)}}, {"lease_s": 600.0})
    ledger = Ledger(tmp_path / "run")
    permission.allow(spec.work.code)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    environment = {**os.environ, **permission.environment(), "SHARDMILL_THREADS": "1"}
    worker = subprocess.Popen([sys.executable, "-m", "shardmill.worker", ledger.url], env=environment)
    try:
        wait_for(mark.exists)
        assert ledger.leases.read()
        yield ledger, worker
    finally:
        worker.kill()
        worker.wait()


def test_native_code_keeps_neither_the_leases_nor_the_process(busy: Any) -> None:
    ledger, worker = busy
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: not ledger.leases.read())
    assert worker.wait(PATIENCE_S) == EXIT_TRY_AGAIN
    assert ledger.claim("heir", len(ledger.plan().shards), lease_s=60.0).crashes == 0


def test_native_code_does_not_outlast_a_stopped_run(busy: Any) -> None:
    ledger, worker = busy
    ledger.state.stop("anna@desk")
    wait_for(lambda: not ledger.leases.read())
    assert worker.wait(PATIENCE_S) == EXIT_TRY_AGAIN


class StoppedMeanwhile:
    """Claims shard 3 while the worker is told to stop."""

    def __init__(self, ledger: Ledger, stop: threading.Event) -> None:
        self.ledger, self.stop = ledger, stop

    def spare_s(self, held: object) -> float:
        return 0.0

    def claim(self, held: object) -> Claim | None:
        claim = self.ledger.leases.take(3, "w", 600.0)
        self.stop.set()
        return claim


def test_a_claim_that_arrives_after_the_stop_is_given_back(tmp_path: Path) -> None:
    ledger, stop = Ledger(tmp_path / "run"), threading.Event()
    ledger.create(a_plan(shards=5))
    choice: Any = StoppedMeanwhile(ledger, stop)
    shards = OpenShards(ledger, choice, Tally(), worker="w", lease_s=600.0, stop=stop)
    with pytest.raises(Stopped):
        shards.next_claim(lambda: False)
    assert ledger.leases.read() == {}
