"""A run in Azure's blob storage, as Azurite has it, and what is said where it refuses."""

from __future__ import annotations

import json
import os
import signal
import uuid

import pytest

from shardmill.core.errors import StoreError
from shardmill.engines.local import LocalEngine
from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.run.planner import devices_for, make_plan
from shardmill.sources import Fields, discover
from shardmill.store import open_store
from tests.support.corpora import fake_rows, fake_spec
from tests.support.engine_contract import assert_complete, finish, live_workers
from tests.support.waiting import wait_for

pytestmark = pytest.mark.services


def test_a_run_of_two_workers_outlives_one_of_them(azure_server: str) -> None:
    """Source and folder in the container: the killed worker's lease is taken over there, the other's is renewed."""
    folder = f"{azure_server}/{uuid.uuid4().hex}"
    lines = "".join(json.dumps(row) + "\n" for row in fake_rows(300))
    open_store(f"{folder}/source").put("items.jsonl", lines.encode())
    settings = {"workers": 2, "device": "cpu", "batch_tokens": 300, "lease_s": 2.0}
    spec = fake_spec(f"{folder}/source", params={"delay_s": 0.1}, **settings)
    ledger, engine = Ledger(f"{folder}/run"), LocalEngine(devices_for(spec), max_restarts=1)
    ledger.create(make_plan(spec, engine.devices))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    placement = engine.start(ledger.url)
    first, *_ = wait_for(lambda: placement.poll() and len(ledger.commits.shards()) >= 2 and live_workers(ledger))
    os.kill(first["pid"], signal.SIGKILL)
    finish(placement)
    assert_complete(Run(ledger.url), 300)


def test_a_container_that_does_not_exist(azure_server: str) -> None:
    for ask in (
        lambda: discover(["az://nothing/items.jsonl"], Fields("text")),
        lambda: discover(["az://nothing/data/*.jsonl"], Fields("text")),
        lambda: Run("az://nothing/run"),
        lambda: open_store("az://nothing/run").put("plan.json", b"{}"),
    ):
        with pytest.raises(StoreError, match="az://nothing: no such container") as caught:
            ask()
        assert not caught.value.retryable


def test_keys_that_are_wrong_or_missing(azure_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    with pytest.raises(StoreError, match="access is denied") as caught:
        open_store(azure_server).get("k")
    assert "AWS" not in caught.value.hint
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(StoreError, match="no credentials were found") as caught:
        open_store(azure_server).get("k")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.hint


@pytest.mark.parametrize("scheme", ["azure", "abfs", "abfss", "adl"])
def test_every_way_to_write_the_address(azure_server: str, scheme: str) -> None:
    key = uuid.uuid4().hex
    open_store(azure_server).put(f"folder/{key}", b"x")
    assert open_store(f"{scheme}://{azure_server.partition('://')[2]}/folder").get(key) == b"x"
