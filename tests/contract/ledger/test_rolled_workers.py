"""Records of workers that ended long ago are rolled up, and every second of every worker counts once."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest

from shardmill.ledger import Ledger, worker
from shardmill.run.costs.cost import Cost, read_cost
from shardmill.run.status.state import read_status
from tests.support.counting import CountingStore, CutShort, CutShortStore
from tests.support.ledgers import a_plan, make_commit

NOW = 2_000_000.0
LEAST, MOST = 10, 15
STATES = ("done", "stopped", "failed", "working", "loading")


@pytest.fixture(autouse=True)
def small_roll_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_ROLLED", (LEAST, MOST))


def begin(seed: int, workers: int) -> str:
    """A run with a number of workers, most of which ended long ago."""
    chance = random.Random(seed)
    url = f"memory://{uuid.uuid4().hex}"
    ledger = Ledger(url, lambda: NOW)
    ledger.create(a_plan(shards=30))
    for shard in range(20):
        ledger.commits.add(make_commit(shard, rows=chance.randrange(1, 50), worker=f"w-{chance.randrange(workers)}"))
    for number in range(workers):
        started = NOW - chance.uniform(0, 400_000)
        began, at = started + chance.uniform(0, 90), min(NOW, started + chance.expovariate(1 / 5000))
        record = {
            "at": at,
            "host": f"h{chance.randrange(9)}",
            "pid": 1,
            "process": f"h 1 2 {number}",
            "device": chance.choice(["NVIDIA A10G", "cpu"]),
            "kind": chance.choice(["cuda", "cpu"]),
            "share": chance.choice([1.0, 0.5, 1 / 3]),
            "started": started,
            "state": chance.choice(STATES),
            "began": began,
            "rows": chance.randrange(60),
            "commits": 1,
            "rows_per_s": chance.random(),
            "tokens_per_s": 1.0,
            "bytes_per_s": 1.0,
            "open": {},
            "idle_s": round(chance.uniform(0, 60), 2),
            "sink_wait_s": round(chance.uniform(0, 9), 3),
            "notes": [],
        }
        # Ids of which one is the beginning of another are listed in another order than their names.
        ledger.workers.beat(f"w-{number}", {k: v for k, v in record.items() if number % 7 or k != "started"})
    return url


def look(url: str) -> tuple[Cost, Any, list[dict[str, Any]]]:
    ledger = Ledger(url, lambda: NOW)
    plan = ledger.plan()
    return read_cost(ledger, plan, 1.7), read_status(ledger, plan), ledger.workers.read()


@pytest.mark.parametrize("seed", range(2))
def test_cost_and_status_are_the_same_wherever_a_roll_up_ends(seed: int) -> None:
    url = begin(seed, 40)
    before = look(url)
    in_both = 0
    for requests in range(200):
        store: Any = CutShortStore(url, requests)
        try:
            Ledger(store, lambda: NOW).workers.roll_up()
        except CutShort:
            assert look(url) == before
            in_both += _in_both(url)
        else:
            break
    assert look(url) == before
    assert in_both > 0
    assert _in_both(url) < LEAST
    assert len(list(Ledger(url).store.list("workers/"))) < 40 - LEAST


def _in_both(url: str) -> int:
    """How many workers have a record of their own and one in a roll-up."""
    store = Ledger(url).store
    rolled = {f"workers/{w['id']}.json" for e in store.list("rolled/") for w in json.loads(store.get(e.key))["workers"]}
    return len(rolled & {e.key for e in store.list("workers/")})


def test_a_worker_counts_once_if_its_record_moves_while_it_is_read() -> None:
    url = begin(1, 60)
    before = [record["id"] for record in Ledger(url).workers.read()]
    for moved_after in (0, 1, 20, 61):
        url = begin(1, 60)
        store = _MovesStore(url, moved_after)
        ledger = Ledger(store, lambda: NOW)  # type: ignore[arg-type]
        assert [record["id"] for record in ledger.workers.read()] == before
        assert next(iter(ledger.store.list("rolled/")), None) is not None


class _MovesStore(CountingStore):
    """Another process rolls up records after a number of requests."""

    def __init__(self, place: str, requests: int) -> None:
        super().__init__(place)
        self._left = requests

    def _count(self, kind: str, key: str) -> None:
        if self._left == 0:
            Ledger(self.url, lambda: NOW).workers.roll_up()
        self._left -= 1


def test_a_worker_that_was_taken_for_gone_counts_once() -> None:
    url = begin(2, 60)
    ledger = Ledger(url, lambda: NOW)
    ledger.workers.roll_up()
    (moved, *_) = json.loads(ledger.store.get(ledger.folder.key("rolled", 0)))["workers"]
    count = len(ledger.workers.read())
    ledger.workers.beat(moved["id"], {**moved, "at": NOW, "state": "done"})
    for each in (ledger, Ledger(url, lambda: NOW)):
        records = each.workers.read()
        assert len(records) == count
        assert [r["at"] for r in records if r["id"] == moved["id"]] == [NOW]


def test_recent_records_and_recent_failures_stay_by_themselves() -> None:
    url = begin(3, 90)
    ledger = Ledger(url, lambda: NOW)
    ledger.workers.roll_up()
    for record in ledger.workers.read():
        age_s = NOW - record["at"]
        stays = age_s < 3600 or (age_s < 86400 and record["state"] not in ("done", "stopped"))
        assert (ledger.workers.find(record["id"]) is not None) == stays


def test_a_few_old_records_stay_where_they_are() -> None:
    url = begin(4, 9)
    Ledger(url, lambda: NOW).workers.roll_up()
    assert list(Ledger(url).store.list("rolled/")) == []


def test_roll_ups_of_a_run_that_was_started_over_do_not_count() -> None:
    url = begin(5, 60)
    old = Ledger(url, lambda: NOW)
    old.plan()
    old.workers.read()
    fresh = Ledger(url, lambda: NOW)
    fresh.plan()
    fresh.start_over(a_plan(shards=30))
    old.store.put(old.folder.key("rolled", 0), b'{"workers": [{"id": "w", "at": 1.0}]}')
    assert fresh.workers.read() == []
    assert fresh.sweep() == 0
    assert list(fresh.store.list("rolled/")) == []
