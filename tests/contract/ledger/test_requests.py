"""What a run asks of its store, counted."""

from __future__ import annotations

import uuid

import pytest

from shardmill.engines.deaths import Deaths
from shardmill.ledger import Ledger, Suspects
from tests.support.counting import CountingStore
from tests.support.ledgers import a_plan, make_commit

OPEN = {"rows": 0, "bytes": 0}


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def ledger(store: CountingStore) -> Ledger:
    """A run of 3000 shards, with settings as large as those that name 10,000 files."""
    ledger = Ledger(store)  # type: ignore[arg-type]
    ledger.create(a_plan(shards=3000))
    ledger.put_execution({"as_large_as_places": [f"s3://bucket/folder/file-{i:06d}.jsonl" for i in range(10_000)]})
    assert ledger.state.is_wanted()
    return ledger


def test_a_beat_asks_one_small_question(ledger: Ledger, store: CountingStore) -> None:
    store.reset()
    assert all(ledger.state.is_wanted() for _ in range(10))
    assert store.requests == {"get_if_changed state.json": 10}
    assert store.fetched_bytes == 0


def test_a_beat_sees_that_the_run_was_stopped_resumed_and_begun_again(ledger: Ledger, store: CountingStore) -> None:
    home = Ledger(store.url)
    home.plan()
    home.state.stop("anna@desk")
    assert not ledger.state.is_wanted()
    assert ledger.state.look().by == "anna@desk"
    home.state.want("anna@desk")
    assert ledger.state.is_wanted()
    home.start_over(a_plan(shards=3))
    assert not ledger.state.is_wanted()


def test_a_death_reads_the_leases_that_the_last_beat_names(ledger: Ledger, store: CountingStore) -> None:
    for shard in range(100):
        ledger.leases.take(shard, f"w{shard // 2}", 60.0)
        ledger.workers.beat(f"w{shard // 2}", {"commits": 0, "open": {str(shard - shard % 2): OPEN, str(shard): OPEN}})
    ledger.suspects.put(7, Suspects((1, 2), poison=(5,)))
    deaths = Deaths(ledger, forgiven=1)
    store.reset()
    assert deaths.judge(0, "w3", -9, []) is None
    assert store.requests["get_tagged leases"] == 2
    assert store.requests["get suspects"] == 1
    assert store.requests["get workers"] == 2
    store.reset()
    assert deaths.judge(0, "w3", -9, []) is not None
    assert store.requests["get workers"] == 2
    assert [shard for shard, lease in ledger.leases.read().items() if not lease.until] == [6, 7]


@pytest.mark.parametrize("beat", [None, {"open": {}}, {"open": {"9": OPEN}}, {"state": "working"}])
def test_a_death_reads_each_lease_once_if_the_last_beat_names_none(
    ledger: Ledger, store: CountingStore, beat: dict[str, object] | None
) -> None:
    for shard in range(50):
        ledger.leases.take(shard, f"w{shard}", 60.0)
    if beat is not None:
        ledger.workers.beat("w3", beat)
    store.reset()
    ledger.leases.record_death("w3")
    assert store.requests["get_tagged leases"] == 50 + (beat == {"open": {"9": OPEN}})
    assert [shard for shard, lease in ledger.leases.read().items() if not lease.until] == [3]


def test_whoever_joins_late_reads_a_segment_instead_of_a_thousand_commits(ledger: Ledger, store: CountingStore) -> None:
    """A worker does so at its first bad row, and a status at once."""
    for shard in range(2600):
        ledger.commits.add(make_commit(shard, errors=shard % 2))
    ledger.segments.catch_up(3000)
    late = Ledger(store)  # type: ignore[arg-type]
    late.plan()
    store.reset()
    assert sum(done.errors for done in late.segments.read(3000).values()) == 1300
    assert store.requests["get segments"] == 2
    assert store.requests["get commits"] == 600
    assert store.requests["list commits"] == 1, "two windows are sealed, and the third is not"


def test_a_worker_that_joins_late_looks_for_a_shard_only_where_not_all_is_sealed(
    ledger: Ledger, store: CountingStore
) -> None:
    for shard in range(2100):
        ledger.commits.add(make_commit(shard))
    ledger.segments.catch_up(3000)
    late = Ledger(store)  # type: ignore[arg-type]
    late.plan()
    store.reset()
    claim = late.claim("late", 3000, lease_s=60.0)
    assert claim is not None
    assert claim.shard >= 2100
    assert (store.requests["list segments"], store.requests["get segments"]) == (1, 1)
    assert store.requests["list commits"] == store.requests["list leases"] == 1


def test_starting_a_run_over_deletes_many_objects_at_once(ledger: Ledger, store: CountingStore) -> None:
    for shard in range(2500):
        ledger.commits.add(make_commit(shard))
        store.put(f"parts/{shard:06d}.a1.parquet", b"")
    store.reset()
    ledger.start_over(a_plan(shards=3))
    deletes = sum(n for kind, n in store.requests.items() if kind.startswith("delete"))
    assert deletes == 1 + 5, "the files beside the plan, then commits and parts"
    assert [entry.key for entry in store.list()] == ["execution.json", "plan.json", "state.json"]


def test_sweeping_a_run_deletes_many_objects_at_once(ledger: Ledger, store: CountingStore) -> None:
    for shard in range(1500):
        store.put(f"parts/{shard:06d}.dead.parquet", b"")
    store.reset()
    assert ledger.sweep() == 1500
    assert sum(n for kind, n in store.requests.items() if kind.startswith("delete")) == 2
