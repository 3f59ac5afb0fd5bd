"""The rolled-up view of a run and the histories of its workers: any store, few requests, no harm if damaged."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from shardmill.ledger import History, HistoryPoint, Ledger, Suspects
from shardmill.plan import Plan
from shardmill.run.status.screen import render
from shardmill.run.status.state import glance, read_status
from tests.support.counting import CountingStore
from tests.support.ledgers import a_plan, make_commit

START = 1_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def a_beat(now: float, **changes: Any) -> dict[str, Any]:
    return {
        "state": "working",
        "host": "elsewhere",
        "pid": 1,
        "device": "T4",
        "kind": "cuda",
        "started": START - 100,
        "began": START - 90,
        "progress_at": now,
        "rows": 100,
        "bytes": 900,
        "rows_per_s": 2.0,
        "bytes_per_s": 10.0,
        "open": {},
        **changes,
    }


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(f"memory://{uuid.uuid4().hex}")


def a_run(store: CountingStore, clock: Clock, shards: int, done: int, workers: int) -> tuple[Ledger, Plan]:
    ledger = Ledger(store, clock)  # type: ignore[arg-type]
    plan = ledger.create(a_plan(shards=shards))
    for shard in range(done):
        ledger.commits.add(make_commit(shard, errors=shard % 2, finished_at=START - 50 + 40 * shard / done))
    for worker in range(workers):
        held = {str(done + worker): {"rows": 3, "bytes": 4}}
        why = [{"reason": "text is null", "count": 2, "file": "x.jsonl", "line_in_shard": 4, "id": {"id": "7"}}]
        ledger.workers.beat(f"w{worker:04d}", a_beat(clock(), open=held, reasons=why))
    return ledger, plan


def test_a_refresh_takes_less_than_twenty_requests_at_5000_shards_and_100_workers(
    store: CountingStore, clock: Clock
) -> None:
    ledger, plan = a_run(store, clock, 5000, 2000, 100)
    assert ledger.overview.write(plan, "w0001", 100)
    reader = Ledger(store, clock)  # type: ignore[arg-type]
    reader.plan()
    for _ in range(2):
        store.reset()
        status = glance(reader, plan)
        assert sum(store.requests.values()) < 20, store.requests
        assert status.shard_states == {"waiting": 2900, "running": 100, "done": 2000, "failed": 0}
        assert (status.shards_done, status.errors, status.tokens) == (2000, 1000, 10_000)
        assert (len(status.workers), status.rows_per_s) == (100, 200)
        assert status.reasons is not None
        assert status.reasons[0]["count"] == 200
        assert status.view_age_s == 0
        assert status.eta_s is not None


def test_a_view_says_what_the_records_say(store: CountingStore, clock: Clock) -> None:
    ledger, plan = a_run(store, clock, 1200, 300, 5)
    ledger.overview.write(plan, "w0001", 5)
    clock.now += 20
    by_view, by_records = glance(ledger, plan).to_json(), read_status(ledger, plan).to_json()
    assert by_view["view_age_s"] == 20
    for name in ("state", "shards_done", "rows", "errors", "tokens", "share", "device_s", "shard_states", "reasons"):
        assert by_view[name] == by_records[name], name
    assert [w["id"] for w in by_view["workers"]] == [w["id"] for w in by_records["workers"]]


def test_the_next_view_reads_only_what_is_new(store: CountingStore, clock: Clock) -> None:
    ledger, plan = a_run(store, clock, 3000, 1500, 10)
    ledger.overview.write(plan, "w0001", 10)
    for shard in range(1500, 1540):
        ledger.commits.add(make_commit(shard))
    other = Ledger(store, clock)  # type: ignore[arg-type]
    other.plan()
    clock.now += 60
    store.reset()
    assert other.overview.write(plan, "w0002", 10)
    assert store.requests["get commits"] == 40
    view = other.overview.read()
    assert view is not None
    assert (view.totals.shards, view.totals.rows, view.by) == (1540, 15_400, "w0002")
    assert [point.rows for point in view.history.points] == [15_000, 400]


def test_of_two_writers_one_gives_way_and_a_young_view_stays(store: CountingStore, clock: Clock) -> None:
    ledger, plan = a_run(store, clock, 1000, 10, 2)
    assert ledger.overview.write(plan, "first", 2)
    assert not ledger.overview.write(plan, "second", 2)
    clock.now += 60
    rival = Ledger(store, clock)  # type: ignore[arg-type]
    rival.plan()
    read = rival.workers.read

    def slowly() -> list[dict[str, Any]]:
        assert ledger.overview.write(plan, "faster", 2)
        return read()

    rival.workers.read = slowly  # type: ignore[method-assign]
    assert not rival.overview.write(plan, "slower", 2)
    view = rival.overview.read()
    assert view is not None
    assert view.by == "faster"


def test_a_convicted_shard_has_failed_until_somebody_works_on_it(store: CountingStore, clock: Clock) -> None:
    ledger, plan = a_run(store, clock, 20, 5, 1)
    ledger.suspects.put(9, Suspects((1,), poison=(1,)))
    ledger.suspects.put(10, Suspects((1, 2)))
    assert glance(ledger, plan).shard_states == {"waiting": 13, "running": 1, "done": 5, "failed": 1}
    ledger.leases.take(9, "w9", 60.0)
    assert glance(ledger, plan).shard_states == {"waiting": 13, "running": 2, "done": 5, "failed": 0}
    ledger.commits.add(make_commit(9))
    assert glance(ledger, plan).shard_states == {"waiting": 13, "running": 1, "done": 6, "failed": 0}


def test_an_old_view_of_workers_that_are_gone_does_not_say_running(store: CountingStore, clock: Clock) -> None:
    ledger, plan = a_run(store, clock, 2000, 10, 3)
    ledger.overview.write(plan, "w0001", 3)
    assert glance(ledger, plan).state == "running"
    clock.now += 3600
    status = glance(ledger, plan)
    assert (status.state, status.view_age_s, status.rows_per_s) == ("stopped", 3600, 0)


def test_a_finished_run_is_shown_by_its_last_view_and_without_it_by_its_commits(
    store: CountingStore, clock: Clock
) -> None:
    ledger, plan = a_run(store, clock, 1000, 1000, 2)
    ledger.overview.write(plan, "w0001", 2)
    ledger.state.finish("w0001")
    assert glance(ledger, plan).view_age_s is None
    ledger.overview.close(plan, "w0001")
    status = glance(ledger, plan)
    assert (status.state, status.view_age_s, status.shards_done, status.share) == ("complete", 0, 1000, 1.0)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"states": "AAAA"}', None])
def test_a_damaged_view_is_passed_over_and_replaced(store: CountingStore, clock: Clock, damage: bytes | None) -> None:
    ledger, plan = a_run(store, clock, 1000, 10, 1)
    ledger.overview.write(plan, "w0001", 1)
    if damage is None:
        said = json.loads(store.get("view.json"))
        damage = json.dumps({**said, "shards": 10**12}).encode()
    store.put("view.json", damage)
    assert ledger.overview.read() is None
    assert glance(ledger, plan).shards_done == 10
    assert ledger.overview.write(plan, "w0001", 1)
    assert ledger.overview.read() is not None


@pytest.mark.parametrize(
    "nonsense",
    [
        {"at": float("nan")},
        {"every_s": "soon"},
        {"reasons": 3},
        {"reasons": [{"reason": 1, "count": "x"}, None]},
        {"fields": [[]]},
        {"workers": [None, 3, ["w"]]},
        {"unlisted": {"T4": None}},
        {"history": {}},
        {"totals": {"shards": "many"}},
    ],
)
def test_nonsense_in_a_view_breaks_no_status(store: CountingStore, clock: Clock, nonsense: dict[str, Any]) -> None:
    ledger, plan = a_run(store, clock, 1000, 10, 1)
    ledger.overview.write(plan, "w0001", 1)
    said = json.loads(store.get("view.json"))
    store.put("view.json", json.dumps({**said, **nonsense}).encode())
    status = glance(ledger, plan)
    assert status.shards_done == 10
    render(status)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"use": "busy", "device_bytes": [1], "timings": {"read_s": "x"}},
        {"use": float("inf"), "timings": 7, "reasons": "none"},
        {"reasons": [{"reason": "r", "count": 1, "id": 3, "file": None}], "cpus": 5, "kind": []},
    ],
)
def test_nonsense_in_a_heartbeat_breaks_no_status(store: CountingStore, clock: Clock, nonsense: dict[str, Any]) -> None:
    ledger, plan = a_run(store, clock, 20, 5, 1)
    ledger.workers.beat("odd", a_beat(clock(), **nonsense))
    status = glance(ledger, plan)
    assert len(status.workers) == 2
    render(status)


def test_a_view_of_another_generation_is_none(store: CountingStore, clock: Clock) -> None:
    ledger, plan = a_run(store, clock, 1000, 10, 1)
    ledger.overview.write(plan, "w0001", 1)
    left = store.get("view.json")
    fresh = ledger.start_over(replace(plan, generation=""))
    assert ledger.store.head("view.json") is None
    store.put("view.json", left)
    assert ledger.overview.read() is None
    assert glance(ledger, fresh).shards_done == 0


def test_a_small_run_writes_no_view(store: CountingStore, clock: Clock) -> None:
    ledger, plan = a_run(store, clock, 20, 5, 1)
    assert not any(ledger.overview.is_turn(20, 8, 1e9) for _ in range(20))
    assert ledger.overview.is_turn(20, 100, 1e9)
    assert ledger.overview.is_turn(1000, 1, 1e9)
    ledger.overview.close(plan, "w0000")
    assert ledger.store.head("view.json") is None


def test_a_history_is_bounded_and_loses_no_row() -> None:
    history = History()
    for second in range(10_000):
        history.add(HistoryPoint(START + second, 1.0, rows=3, tokens=5, memory_bytes=100.0, use=second % 2))
        assert len(history.points) <= 120
    assert sum(point.rows for point in history.points) == 30_000
    assert sum(point.seconds for point in history.points) == 10_000
    assert [point.use for point in history.points[:-1]] == pytest.approx([0.5] * (len(history.points) - 1), abs=0.01)
    assert {point.memory_bytes for point in history.points} == {100.0}
    again = History.from_json(json.loads(json.dumps(history.to_json())))
    assert (again.points, again.step_s) == (history.points, history.step_s)


def test_a_history_that_was_not_recorded_or_is_damaged_is_none(store: CountingStore, clock: Clock) -> None:
    ledger, _ = a_run(store, clock, 3, 0, 0)
    assert ledger.history.read("w") is None
    ledger.history.put("w", History([HistoryPoint(START, 5.0, rows=3)]))
    found = ledger.history.read("w")
    assert found is not None
    assert found.points == [HistoryPoint(START, 5.0, rows=3)]
    store.put(f"history/w.{ledger.folder.generation}.json", b'{"points": [[1]], "fields": ["at"], "step_s": 1}')
    assert ledger.history.read("w") is None
