"""Roll-ups of commits: they save requests, and a wrong one changes no result."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import Any

import pytest

from shardmill.ledger import Assignment, DoneShard, Ledger
from shardmill.ledger import segment as segments
from shardmill.run.status.state import read_status
from shardmill.store import LocalStore
from tests.support.counting import CountingStore, CutShort, CutShortStore
from tests.support.ledgers import a_plan, make_commit

SHARDS, AT_ONCE = 47, 5


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEALED_AT_ONCE", AT_ONCE)


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def begin(url: str, shards: int = SHARDS) -> Ledger:
    ledger = Ledger(url)
    ledger.create(a_plan(shards=shards))
    return ledger


def commit(ledger: Ledger, *shards: int) -> None:
    for shard in shards:
        record = make_commit(shard, rows=10 + shard, errors=shard % 2, tokens=3 * shard, worker=f"w{shard % 3}")
        assert ledger.commits.add(replace(record, timings={"device_s": shard / 8}, finished_at=float(shard)))


def truth(url: str) -> dict[int, DoneShard]:
    ledger = Ledger(url)
    ledger.plan()
    return {shard: DoneShard.of(found) for shard, found in ledger.commits.read().items()}


def sealed(url: str) -> list[int]:
    """The shards of all segments, in no order."""
    ledger = Ledger(url)
    ledger.plan()
    return [values[0] for found in segments.Series(ledger.folder, "segments").read_new() for values in found["shards"]]


def test_whoever_comes_late_reads_segments_and_the_rest(url: str) -> None:
    ledger = begin(url)
    commit(ledger, *range(40, 10, -1), 0, 5)
    ledger.segments.catch_up(SHARDS)
    commit(ledger, 45)
    store: Any = CountingStore(url)
    late = Ledger(store)
    late.plan()
    store.reset()
    assert dict(late.segments.read(SHARDS)) == truth(url)
    assert store.requests["get segments"] == 32 // AT_ONCE
    assert store.requests["get commits"] == 33 % AT_ONCE
    store.reset()
    late.segments.read(SHARDS)
    assert store.requests == {"list segments": 1, "list commits": 1}


def test_status_is_the_same_with_and_without_segments(url: str) -> None:
    ledger = begin(url)
    commit(ledger, *range(3, 33))
    before = read_status(Ledger(url))
    ledger.segments.catch_up(SHARDS)
    assert len(sealed(url)) == 30
    assert replace(read_status(Ledger(url)), at=before.at) == before
    commit(ledger, *range(3), *range(33, SHARDS))
    ledger.segments.catch_up(SHARDS)
    assert read_status(Ledger(url)).state == "complete"


def test_each_shard_is_sealed_once_however_many_seal(url: str) -> None:
    chance = random.Random(7)
    ledger = begin(url)
    left = list(range(SHARDS))
    chance.shuffle(left)
    workers = [Ledger(url) for _ in range(4)]
    for worker in workers:
        worker.plan()
    while left:
        commit(ledger, *(left.pop() for _ in range(min(len(left), chance.randrange(1, 12)))))
        for worker in chance.sample(workers, 2):
            worker.segments.read(SHARDS)
        for worker in chance.sample(workers, 3):
            worker.segments.seal()
    assert len(sealed(url)) == len(set(sealed(url)))
    workers[0].segments.catch_up(SHARDS)
    assert len(sealed(url)) == SHARDS - SHARDS % AT_ONCE
    assert all(dict(worker.segments.read(SHARDS)) == truth(url) for worker in workers)


def test_a_sealer_may_die_before_any_request(url: str) -> None:
    ledger = begin(url)
    commit(ledger, *range(0, 44, 2))
    for requests in range(100):
        store: Any = CutShortStore(url, requests)
        try:
            Ledger(store).segments.catch_up(SHARDS)
        except CutShort:
            late = Ledger(url)
            late.plan()
            assert dict(late.segments.read(SHARDS)) == truth(url)
        else:
            break
    assert sorted(sealed(url)) == list(range(0, 40, 2))


@pytest.mark.parametrize("where", ["claim", "status", "window"])
def test_a_segment_that_is_wrong_hides_no_shard(url: str, where: str) -> None:
    """It names shards that nobody committed; the run ends all the same with a commit for each shard."""
    liar = begin(url)
    commit(liar, *range(20))
    liar.segments.read(SHARDS)
    for shard in (3, 4, 5, 19):
        liar.store.delete(liar.commits.key(shard))
    liar.segments.seal()
    ledger = Ledger(url)
    ledger.plan()
    if where == "window":
        ledger.store.put(ledger.folder.key("segments", 9), b'{"full": [0, 7, -1, "x"]}')
        ledger.claim("w", SHARDS, lease_s=60)
        assert ledger.commits.saw_done(SHARDS - 1)
    elif where == "claim":
        ledger.segments.read(SHARDS)
        assert ledger.commits.saw_done(3)
    else:
        ledger.segments.read(SHARDS)
        commit(ledger, *range(20, SHARDS))
        assert read_status(Ledger(url)).state != "complete"
    while not ledger.is_over(SHARDS):
        claim = ledger.claim("w", SHARDS, lease_s=60)
        assert claim is not None
        commit(ledger, claim.shard)
        ledger.leases.retire(claim.shard)
    assert truth(url).keys() == set(range(SHARDS))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"fields": ["shard"], "shards": [[1]]}', b'{"shards": 3, "full": 3}']
)
def test_a_segment_that_makes_no_sense_is_passed_over(url: str, content: bytes) -> None:
    ledger = begin(url)
    commit(ledger, *range(12))
    ledger.store.put(ledger.folder.key("segments", 0), content)
    assert dict(ledger.segments.read(SHARDS)) == truth(url)
    ledger.segments.seal()
    assert len(list(ledger.store.list("segments/"))) == 1 + 12 // AT_ONCE
    late = Ledger(url)
    late.plan()
    assert dict(late.segments.read(SHARDS)) == truth(url)


def test_segments_of_a_run_that_was_started_over_are_not_read(url: str) -> None:
    ledger = begin(url)
    commit(ledger, *range(30))
    old = Ledger(url)
    old.plan()
    old.segments.read(SHARDS)
    ledger.segments.catch_up(SHARDS)
    ledger.start_over(a_plan(shards=SHARDS))
    assert list(ledger.store.list("segments/")) == []
    old.segments.seal()
    commit(ledger, 1)
    assert dict(ledger.segments.read(SHARDS)) == truth(url)
    assert ledger.segments.read(SHARDS).keys() == {1}
    assert [e.key for e in ledger.store.list("segments/")] != []
    ledger.sweep()
    assert [e.key for e in ledger.store.list("segments/")] == []


def test_the_segments_of_a_complete_run_stay(url: str) -> None:
    ledger = begin(url)
    commit(ledger, *range(SHARDS))
    ledger.segments.catch_up(SHARDS)
    ledger.sweep()
    assert len(sealed(url)) == 45


def test_a_branch_is_not_sealed(tmp_path: Any) -> None:
    """Home takes its commits away, and may want a shard again."""
    ledger = Ledger(LocalStore(tmp_path))
    ledger.create(a_plan(shards=SHARDS))
    ledger.branch.assign(Assignment(tuple(range(20)), 0.0))
    commit(ledger, *range(20))
    worker = Ledger(LocalStore(tmp_path))
    worker.plan()
    assert worker.segments.read(SHARDS).keys() == set(range(20))
    ledger.commits.delete(range(5))
    worker.segments.catch_up(SHARDS)
    assert not (tmp_path / "segments").exists()
