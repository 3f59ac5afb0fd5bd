"""What a run asks of its store, counted."""

from __future__ import annotations

import json
import uuid

import pytest

from shardmill.engines.deaths import Deaths
from shardmill.ledger import Ledger, Suspects
from tests.support.counting import CountingStore
from tests.support.ledgers import a_plan, make_commit


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def ledger(store: CountingStore) -> Ledger:
    """A run of 3000 shards, with settings as large as those that name 10,000 files."""
    ledger = Ledger(store)  # type: ignore[arg-type]
    ledger.create(a_plan(shards=3000))
    ledger.put_execution({"as_large_as_places": [f"s3://bucket/folder/file-{i:06d}.jsonl" for i in range(10_000)]})
    assert ledger.is_wanted()
    return ledger


def test_a_beat_does_not_fetch_the_places_of_the_files_again(ledger: Ledger, store: CountingStore) -> None:
    store.reset()
    assert all(ledger.is_wanted() for _ in range(10))
    assert store.requests.total() == 10
    assert store.fetched_bytes == 0


def test_a_beat_sees_that_the_run_was_stopped_resumed_and_begun_again(ledger: Ledger, store: CountingStore) -> None:
    home = Ledger(store.url)
    home.plan()
    home.stop("anna@desk")
    assert not ledger.is_wanted()
    assert ledger.stopped_by() == "anna@desk"
    home.put_execution({})
    assert ledger.is_wanted()
    assert ledger.stopped_by() == ""
    home.start_over(a_plan(shards=3))
    assert not ledger.is_wanted()
    home.put_execution({})
    assert not ledger.is_wanted()


def test_a_stop_by_an_earlier_version_is_seen(ledger: Ledger, store: CountingStore) -> None:
    found = json.loads(store.get("execution.json"))
    store.put("execution.json", json.dumps({**found, "stopped": {"by": "0.1.0", "at": 1.0}}).encode())
    assert not ledger.is_wanted()


def test_a_death_reads_each_lease_once_and_the_beat_of_one_worker(ledger: Ledger, store: CountingStore) -> None:
    for shard in range(100):
        ledger.leases.take(shard, f"w{shard}", 60.0)
        ledger.workers.beat(f"w{shard}", {"commits": 0})
    ledger.suspects.put(7, Suspects((1, 2), poison=(5,)))
    deaths = Deaths(ledger, forgiven=1)
    store.reset()
    assert deaths.judge(0, "w3", -9, []) is None
    assert store.requests["get_tagged leases"] == 100
    assert store.requests["get suspects"] == 1
    store.reset()
    assert deaths.judge(0, "w3", -9, []) is not None
    assert store.requests["get_tagged leases"] == 100
    assert store.requests["get workers"] == 1


def test_starting_a_run_over_deletes_many_objects_at_once(ledger: Ledger, store: CountingStore) -> None:
    for shard in range(2500):
        ledger.commits.add(make_commit(shard))
        store.put(f"parts/{shard:06d}.a1.parquet", b"")
    store.reset()
    ledger.start_over(a_plan(shards=3))
    deletes = sum(n for kind, n in store.requests.items() if kind.startswith("delete"))
    assert deletes == 3 + 3 + 1, "commits, parts, the files beside the plan"
    assert [entry.key for entry in store.list()] == ["plan.json"]


def test_sweeping_a_run_deletes_many_objects_at_once(ledger: Ledger, store: CountingStore) -> None:
    for shard in range(1500):
        store.put(f"parts/{shard:06d}.dead.parquet", b"")
    store.reset()
    assert ledger.sweep() == 1500
    assert sum(n for kind, n in store.requests.items() if kind.startswith("delete")) == 2
