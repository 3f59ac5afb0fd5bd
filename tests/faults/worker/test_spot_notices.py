"""A machine that its cloud takes away: its workers hear the notice, and give their shards back at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardmill.core import spot
from shardmill.core.devices import Device
from shardmill.core.errors import EXIT_TRY_AGAIN, UsageError
from shardmill.engines.process import worker_environment
from shardmill.ledger import Ledger
from shardmill.run import Run, resume, start
from shardmill.run.planner import make_plan
from tests.support.cli import command
from tests.support.corpora import fake_rows, fake_spec
from tests.support.engine_contract import LOCALLY, assert_complete
from tests.support.metadata_service import AWS, AZURE, GCP, MetadataService, metadata_service
from tests.support.waiting import PATIENCE_S, wait_for

VARIABLE = "SHARDMILL_SPOT_NOTICE"
PLACES = {"aws": AWS, "gcp": GCP, "azure": AZURE}


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as found:
        yield found


@pytest.mark.parametrize("cloud", PLACES)
def test_a_worker_gives_its_shards_back_on_the_notice_of_its_cloud(
    cloud: str, service: MetadataService, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    spec = fake_spec(write_jsonl(fake_rows(400)), params={"delay_s": 0.2}, batch_tokens=300, shard_bytes=4_000)
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution({**spec.execution.model_dump(mode="json"), "lease_s": 600.0})
    # A notice for another machine of the same scale set is not for this one.
    service.others = True
    environment = {**os.environ, VARIABLE: f"{cloud}={service.address}", "http_proxy": "http://127.0.0.1:9"}
    words = [sys.executable, "-m", "shardmill.worker", ledger.url]
    worker = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: ledger.leases.read() and PLACES[cloud] in service.asked)
        assert worker.poll() is None
        service.taken = True
        _, said = worker.communicate(timeout=PATIENCE_S)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == EXIT_TRY_AGAIN, said
    assert "takes this machine" in said
    assert ledger.leases.read() == {}
    assert ledger.claim("heir", len(ledger.plan().shards), lease_s=60.0).crashes == 0


def test_a_run_on_a_machine_that_is_taken_goes_on_elsewhere(
    service: MetadataService, tmp_path: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = fake_spec(
        write_jsonl(fake_rows(600)),
        params={"delay_s": 0.2},
        batch_tokens=300,
        shard_bytes=4_000,
        workers=2,
        detach=True,
        lease_s=600.0,
        **LOCALLY,
    )
    monkeypatch.setenv(VARIABLE, f"aws={service.address}")
    run = start(spec, tmp_path / "run")
    wait_for(lambda: len(run.ledger.leases.read()) >= 2 and run.ledger.commits.shards())
    service.taken = True
    wait_for(lambda: not run.ledger.leases.read())
    wait_for(lambda: all(beat["state"] == "stopped" for beat in run.ledger.workers.read()))
    assert not run.ledger.is_over(len(run.plan.shards))
    monkeypatch.delenv(VARIABLE)
    resume(tmp_path / "run", {"detach": False})
    assert_complete(Run(tmp_path / "run"), 600)


def test_workers_elsewhere_hear_of_it_and_a_wrong_value_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_jsonl: Callable[..., Path]
) -> None:
    monkeypatch.setenv(VARIABLE, "gcp")
    assert worker_environment("w", Device("cpu", "cpu"), 0.0)[VARIABLE] == "gcp"
    monkeypatch.setenv(VARIABLE, "oracle")
    with pytest.raises(UsageError, match="names no cloud") as told:
        spot.environment()
    assert "aws, gcp or azure" in told.value.hint
    source = write_jsonl(fake_rows(20))
    words = ["run", source, "--task", "shardmill.testing:FakeTask", "--text", "text", "--out", tmp_path / "run"]
    done = subprocess.run(command(*words, "--workers", "2"), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2, done.stderr
    assert "SHARDMILL_SPOT_NOTICE=oracle names no cloud" in done.stderr
