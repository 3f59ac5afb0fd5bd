"""The run folder keeps its word in every store: a commit is for good, a lease is only a hint."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import NotComplete, UsageError
from shardmill.ledger import Lease, Ledger, Suspects, process_alive
from tests.support.ledgers import a_plan, make_commit


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(place: str, clock: Clock) -> Ledger:
    """A run of thirty shards, just planned."""
    ledger = Ledger(place, clock)
    ledger.create(a_plan(shards=30))
    return ledger


def test_the_first_commit_wins_and_the_second_is_told(ledger: Ledger) -> None:
    assert ledger.commits.add(make_commit(7, "first"))
    assert not ledger.commits.add(make_commit(7, "second"))
    assert ledger.commits.read()[7].attempt == "first"


def test_one_of_many_racing_commits_wins(ledger: Ledger) -> None:
    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(lambda i: ledger.commits.add(make_commit(0, f"a{i}")), range(6)))
    assert won.count(True) == 1
    assert ledger.commits.read()[0].attempt == f"a{won.index(True)}"


def test_commits_are_fetched_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    get = ledger.store.get
    monkeypatch.setattr(ledger.store, "get", lambda key: fetched.append(key) or get(key))
    ledger.commits.add(make_commit(0))
    assert ledger.commits.read().keys() == {0}
    ledger.commits.add(make_commit(4))
    assert ledger.commits.read().keys() == ledger.commits.shards() == {0, 4}
    assert [key.partition(".")[0] for key in fetched] == ["commits/000000", "commits/000004"]


def test_many_commits_and_leases_are_fetched_as_one_by_one(ledger: Ledger, place: str) -> None:
    for shard in range(80):
        assert ledger.claim(f"w{shard % 2}", 80, lease_s=60) is not None
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: ledger.commits.add(make_commit(i, f"a{i}")), range(80)))
    assert [c.attempt for _, c in sorted(Ledger(place).commits.read().items())] == [f"a{i}" for i in range(80)]
    ledger.leases.record_death("w0")
    assert Counter(lease.worker for lease in Ledger(place).leases.read().values() if not lease.until) == {"w0": 40}


def test_all_commits_come_in_source_order_or_not_at_all(ledger: Ledger) -> None:
    for shard in (2, 0):
        ledger.commits.add(make_commit(shard))
    with pytest.raises(NotComplete, match="1 of 3 shards are not done"):
        ledger.commits.read_complete(a_plan())
    ledger.commits.add(make_commit(9))
    with pytest.raises(NotComplete, match="1 of 3 shards are not done"):
        ledger.commits.read_complete(a_plan())
    ledger.commits.add(make_commit(1))
    assert [c.shard for c in ledger.commits.read_complete(a_plan())] == [0, 1, 2]


def test_each_shard_is_claimed_once_under_six_threads(ledger: Ledger, place: str) -> None:
    shards = 30

    def claim_until_none(worker: int) -> list[int]:
        ledger, got = Ledger(place), []
        while (claim := ledger.claim(f"w{worker}", shards, lease_s=60, slot=worker / 6)) is not None:
            got.append(claim.shard)
        return got

    with ThreadPoolExecutor(6) as pool:
        taken = [shard for got in pool.map(claim_until_none, range(6)) for shard in got]
    assert len(taken) == len(set(taken))
    last = Ledger(place)
    while (claim := last.claim("last", shards, lease_s=60)) is not None:
        taken.append(claim.shard)
    assert sorted(taken) == list(range(shards))


def test_workers_start_at_different_places(ledger: Ledger) -> None:
    taken = [ledger.claim(f"w{i}", 9, lease_s=60, slot=i / 3) for i in range(3)]
    assert [c.shard for c in taken if c] == [0, 3, 6]


def test_what_is_committed_is_not_claimed(ledger: Ledger) -> None:
    ledger.commits.add(make_commit(0))
    claim = ledger.claim("w", 2, lease_s=60)
    assert claim is not None
    assert claim.shard == 1
    ledger.commits.add(make_commit(1))
    assert ledger.claim("w", 2, lease_s=60) is None


def test_a_shard_that_was_done_since_the_last_listing_is_not_claimed(ledger: Ledger, place: str) -> None:
    first, other = ledger.claim("w", 3, lease_s=60), Ledger(place)
    taken = other.claim("other", 3, lease_s=60)
    assert first is not None
    assert taken is not None
    assert (first.shard, taken.shard) == (0, 1)
    other.commits.add(make_commit(1))
    other.leases.release(taken, "other")
    second = ledger.claim("w", 3, lease_s=60)
    assert second is not None
    assert second.shard == 2
    assert sorted(ledger.leases.read()) == [0, 2]


def test_a_claim_lists_the_run_once_for_many_shards(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []
    plain = ledger.store.list
    monkeypatch.setattr(
        ledger.store, "list", lambda prefix="", after="": [listed.append(prefix), *plain(prefix, after)][1:]
    )
    taken = [ledger.claim("w", 50, lease_s=60) for _ in range(50)]
    assert [claim.shard for claim in taken if claim] == list(range(50))
    assert listed == ["commits/", "leases/"]


def test_a_lease_that_ran_out_is_taken_over_and_counted_as_a_crash(ledger: Ledger, clock: Clock) -> None:
    ledger.claim("gone", 1, lease_s=10)
    clock.now += 9
    assert ledger.claim("next", 1, lease_s=10) is None
    clock.now += 2
    for crashes in (1, 2):
        claim = ledger.claim(f"next-{crashes}", 1, lease_s=10)
        assert claim is not None
        assert (claim.shard, claim.crashes) == (0, crashes)
        clock.now += 11


def test_an_expired_lease_has_one_heir(ledger: Ledger, place: str, clock: Clock) -> None:
    ledger.claim("gone", 1, lease_s=10)
    clock.now += 11
    with ThreadPoolExecutor(6) as pool:
        heirs = list(pool.map(lambda i: Ledger(place, clock).claim(f"w{i}", 1, lease_s=10), range(6)))
    assert len([h for h in heirs if h]) == 1


def test_a_renewed_lease_holds(ledger: Ledger, clock: Clock) -> None:
    claim = ledger.claim("mine", 1, lease_s=10)
    assert claim is not None
    clock.now += 8
    ledger.leases.renew(claim, "mine", 10)
    clock.now += 8
    assert ledger.claim("other", 1, lease_s=10) is None


def test_only_the_holder_renews_and_releases(ledger: Ledger, clock: Clock) -> None:
    claim = ledger.claim("mine", 1, lease_s=10)
    assert claim is not None
    clock.now += 8
    ledger.leases.renew(claim, "other", 1000)
    ledger.leases.release(claim, "other")
    assert ledger.leases.read()[0].until == 1_000_010
    ledger.leases.release(claim, "mine")
    assert ledger.leases.read() == {}
    ledger.leases.renew(claim, "mine", 10)
    assert ledger.leases.read() == {}


def test_a_released_shard_is_free_and_has_no_crash(ledger: Ledger) -> None:
    claim = ledger.claim("mine", 1, lease_s=10)
    assert claim is not None
    ledger.leases.release(claim, "mine")
    again = ledger.claim("other", 1, lease_s=10)
    assert again is not None
    assert again.crashes == 0
    assert again.attempt != claim.attempt


def test_a_buried_worker_leaves_its_shards_with_its_death_on_them(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.claim("dead", 3, lease_s=1000)
    ledger.claim("alive", 3, lease_s=1000)
    ledger.leases.record_death("dead")
    taken = [ledger.claim("heir", 3, lease_s=1000) for _ in range(3)]
    assert [(c.shard, c.crashes) if c else None for c in taken] == [(0, 1), (1, 1), None]


def test_the_slowest_is_shadowed_once_and_only_when_it_is_slow(ledger: Ledger, clock: Clock) -> None:
    ledger.claim("slowest", 2, lease_s=1000)
    clock.now += 5
    ledger.claim("slow", 2, lease_s=1000)
    clock.now += 50
    assert ledger.claim("idle", 2, lease_s=10, slow_s=60) is None
    clock.now += 20
    shadows = [ledger.claim("idle", 2, lease_s=10, slow_s=60) for _ in range(3)]
    assert [c.shard if c else None for c in shadows] == [0, 1, None]
    assert [c.crashes for c in shadows if c] == [0, 0]
    assert {s: (x.worker, x.shadow) for s, x in ledger.leases.read().items()} == {
        0: ("slowest", "idle"),
        1: ("slow", "idle"),
    }


def test_a_worker_does_not_shadow_itself(ledger: Ledger, clock: Clock) -> None:
    ledger.claim("only", 1, lease_s=1000)
    clock.now += 500
    assert ledger.claim("only", 1, lease_s=10, slow_s=60) is None


def test_who_would_be_later_than_the_one_who_asks_is_shadowed(ledger: Ledger, clock: Clock) -> None:
    soon, late = (ledger.claim(name, 2, lease_s=1000) for name in ("soon", "late"))
    assert soon is not None
    assert late is not None
    ledger.leases.renew(soon, "soon", 1000, due=clock.now + 30)
    ledger.leases.renew(late, "late", 1000, due=clock.now + 300)
    assert ledger.claim("as slow", 2, lease_s=10, own_s=290) is None
    shadow = ledger.claim("fast", 2, lease_s=10, own_s=25)
    assert shadow is not None
    assert (shadow.shard, shadow.shadow) == (late.shard, True)
    assert ledger.claim("fast", 2, lease_s=10, own_s=25) is None
    ledger.leases.release(shadow, "fast")
    again = ledger.claim("third", 2, lease_s=10, own_s=25)
    assert again is not None
    assert again.shadow


def test_who_was_overtaken_is_told_when_it_renews(ledger: Ledger, clock: Clock) -> None:
    slow = ledger.claim("slow", 1, lease_s=1000)
    assert slow is not None
    clock.now += 100
    fast = ledger.claim("fast", 1, lease_s=1000, slow_s=60)
    assert fast is not None
    assert ledger.leases.renew(slow, "slow", 1000)
    assert ledger.leases.renew(fast, "fast", 1000)
    ledger.commits.add(make_commit(0))
    assert not ledger.leases.renew(slow, "slow", 1000)
    ledger.leases.retire(0)
    assert not ledger.leases.renew(slow, "slow", 1000)
    assert not ledger.leases.renew(fast, "fast", 1000)
    assert ledger.leases.read() == {}


def test_a_shard_whose_holder_vanished_is_left_to_its_shadow(ledger: Ledger, clock: Clock) -> None:
    ledger.claim("gone", 1, lease_s=100)
    clock.now += 90
    shadow = ledger.claim("shadow", 1, lease_s=100, slow_s=60)
    assert shadow is not None
    assert ledger.leases.renew(shadow, "shadow", 100)
    clock.now += 90
    assert ledger.claim("third", 1, lease_s=100) is None
    clock.now += 20
    assert ledger.claim("third", 1, lease_s=100) is not None


def test_a_lease_left_on_a_shard_that_is_done_is_not_taken_over(ledger: Ledger, clock: Clock) -> None:
    ledger.claim("gone", 2, lease_s=10)
    second = ledger.claim("gone", 2, lease_s=10)
    assert second is not None
    assert ledger.claim("next", 2, lease_s=10) is None
    ledger.commits.add(make_commit(0))
    clock.now += 11
    heir = ledger.claim("next", 2, lease_s=10)
    assert heir is not None
    assert heir.shard == 1
    assert ledger.leases.read().keys() == {1}


def test_a_shard_that_was_given_back_late_is_found(ledger: Ledger) -> None:
    claim = ledger.claim("leaving", 1, lease_s=1000)
    assert claim is not None
    assert ledger.claim("next", 1, lease_s=10) is None
    ledger.leases.release(claim, "leaving")
    found = ledger.claim("next", 1, lease_s=10)
    assert found is not None
    assert found.crashes == 0


def test_a_run_is_complete_when_every_shard_is_committed(ledger: Ledger) -> None:
    assert ledger.commits.is_complete(0)
    for shard in (0, 2):
        ledger.commits.add(make_commit(shard))
    assert not ledger.commits.is_complete(3)
    ledger.commits.add(make_commit(1))
    assert ledger.commits.is_complete(3)
    assert not ledger.commits.is_complete(4)


def test_what_a_claim_asks_for_does_not_grow_with_the_run(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 shards of which all but a few in the last window are done, and a worker whose place is the first."""
    shards = 5000
    ledger = Ledger("memory://a-long-run", clock)
    ledger.create(a_plan(shards=3))
    for shard in range(shards - 3):
        ledger.commits.add(make_commit(shard))
    listed: list[int] = []
    plain = ledger.store.list

    def count(prefix: str = "", after: str = "") -> Any:
        listed.append(0)
        for entry in plain(prefix, after):
            listed[-1] += 1
            yield entry

    monkeypatch.setattr(ledger.store, "list", count)
    taken = [ledger.claim("w", shards, lease_s=60) for _ in range(3)]
    assert sorted(claim.shard for claim in taken if claim) == [4997, 4998, 4999]
    assert len(listed) <= 10
    assert max(listed) <= 1001
    listed.clear()
    assert not ledger.commits.is_complete(shards)
    assert sum(listed) <= 4100
    listed.clear()
    assert not ledger.commits.is_complete(shards)
    assert sum(listed) <= 1001


def _held_by(ledger: Ledger, host: str, pid: int) -> None:
    ledger.claim("w", 1, lease_s=1000)
    lease = Lease("w", host, pid, ledger.clock(), ledger.clock() + 1000)
    (entry,) = ledger.store.list("leases/")
    ledger.store.put(entry.key, json.dumps(asdict(lease)).encode())


def _dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_process_that_vanished_from_this_host_is_not_waited_for(ledger: Ledger) -> None:
    _held_by(ledger, socket.gethostname(), _dead_pid())
    claim = ledger.claim("next", 1, lease_s=10)
    assert claim is not None
    assert claim.crashes == 1


def test_a_process_of_this_host_that_lives_keeps_its_shard(ledger: Ledger) -> None:
    _held_by(ledger, socket.gethostname(), os.getpid())
    assert ledger.claim("next", 1, lease_s=10) is None


def _claim_as(ledger: Ledger, proc: Path, pid: int, namespace: str = "", started: int = 0) -> None:
    """Claim the only shard as another process of a host with this name: of another pid namespace or start time."""
    boot = "sys/kernel/random/boot_id"
    for path, text in ((boot, Path("/proc", boot).read_text()), ("self/stat", f"1 (x) S{' 0' * 18} {started} 0")):
        (proc / path).parent.mkdir(parents=True, exist_ok=True)
        (proc / path).write_text(text)
    (proc / "self/ns").mkdir()
    (proc / "self/ns/pid").symlink_to(namespace or os.readlink("/proc/self/ns/pid"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardmill.ledger.process._PROC", str(proc), raising=False)
        patch.setattr(os, "getpid", lambda: pid)
        assert ledger.claim("w", 1, lease_s=1000) is not None


def test_a_pod_with_the_same_host_name_is_given_its_time(ledger: Ledger, tmp_path: Path) -> None:
    """Its pid means nothing here: pods may share the name of their host, or be cloned with one name."""
    _claim_as(ledger, tmp_path, _dead_pid(), namespace="pid:[1]")
    assert ledger.claim("next", 1, lease_s=10) is None


def test_a_process_whose_pid_is_used_again_is_not_waited_for(ledger: Ledger, tmp_path: Path) -> None:
    _claim_as(ledger, tmp_path, os.getpid(), started=1)
    claim = ledger.claim("next", 1, lease_s=10)
    assert claim is not None
    assert claim.crashes == 1


def test_a_lease_of_this_process_is_its_own(ledger: Ledger) -> None:
    assert ledger.claim("w", 1, lease_s=10) is not None
    (lease,) = ledger.leases.read().values()
    assert process_alive(lease.host, lease.pid)
    assert process_alive(lease.host, _dead_pid()) is False


def test_a_process_of_another_host_is_given_its_time(ledger: Ledger) -> None:
    _held_by(ledger, "another-host", _dead_pid())
    assert ledger.claim("next", 1, lease_s=10) is None


def test_the_first_plan_stands(place: str) -> None:
    plans = [a_plan(f"field{i}") for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        stood = list(pool.map(lambda p: Ledger(place).create(p), plans))
    assert stood == [stood[0]] * 6
    assert Ledger(place).plan() == stood[0]
    assert Ledger(place).create(a_plan("late")) == stood[0]


def test_a_folder_without_a_plan_is_no_run(place: str) -> None:
    ledger = Ledger(place)
    assert ledger.find_plan() is None
    with pytest.raises(UsageError, match="no run found here"):
        ledger.plan()


def test_the_last_word_of_a_worker_counts(ledger: Ledger) -> None:
    ledger.workers.beat("w1", {"state": "working"})
    ledger.workers.beat("w1", {"state": "done"})
    (record,) = ledger.workers.read()
    assert (record["id"], record["at"], record["state"]) == ("w1", 1_000_000.0, "done")


def test_suspects_are_remembered_until_they_are_dropped(ledger: Ledger) -> None:
    noted = Suspects(rows=(4, 5), strikes=1, poison=(9,))
    ledger.suspects.put(3, noted)
    assert ledger.suspects.get(3) == noted
    ledger.suspects.delete(3)
    assert ledger.suspects.get(3) == Suspects()


def _keys(ledger: Ledger) -> list[str]:
    """What lies in the folder; which life of the run a commit is of does not matter here."""
    keys = sorted(e.key for e in ledger.store.list(""))
    return [k.partition(".")[0] if k.startswith(("commits/", "leases/", "suspects/")) else k for k in keys]


def _fill(ledger: Ledger) -> None:
    ledger.put_execution({"workers": 1})
    ledger.claim("w1", 30, lease_s=10)
    ledger.suspects.put(1, Suspects(rows=(1,)))
    ledger.commits.add(make_commit(0, errors_file="errors/000000.a1.jsonl"))
    for key in ("parts/000000.a1.parquet", "parts/000000.b2.parquet", "parts/000001.c3.parquet"):
        ledger.store.put(key, b"x")
    for key in ("errors/000000.a1.jsonl", "errors/000000.b2.jsonl"):
        ledger.store.put(key, b"{}")
    ledger.workers.beat("w1", {})
    ledger.store.put("notes.txt", b"the user's own")


def test_sweep_keeps_what_commits_name_and_what_is_not_ours(ledger: Ledger) -> None:
    _fill(ledger)
    assert ledger.sweep() == 3
    assert _keys(ledger) == [
        "commits/000000",
        "errors/000000.a1.jsonl",
        "execution.json",
        "notes.txt",
        "parts/000000.a1.parquet",
        "plan.json",
        "state.json",
        "workers/w1.json",
    ]


def test_sweep_leaves_a_run_that_another_parent_starts_over_meanwhile(
    ledger: Ledger, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.commits.add(make_commit(0, "old"))
    read, another = ledger.commits.read, Ledger(place)

    def then_start_over() -> Any:
        found = read()
        another.plan()
        another.start_over(a_plan(shards=30))
        another.store.put("parts/000000.new.parquet", b"x")
        another.commits.add(make_commit(0, "new"))
        assert another.claim("w", 30, lease_s=10) is not None
        return found

    monkeypatch.setattr(ledger.commits, "read", then_start_over)
    assert ledger.sweep() == 0
    assert _keys(ledger) == ["commits/000000", "leases/000001", "parts/000000.new.parquet", "plan.json", "state.json"]


def test_starting_over_removes_the_run_and_nothing_beside_it(ledger: Ledger) -> None:
    _fill(ledger)
    ledger.notes.put_report({"verified": True})
    before = ledger.plan().generation
    assert ledger.start_over(a_plan()).id == a_plan().id
    assert ledger.plan().generation != before
    assert _keys(ledger) == ["execution.json", "notes.txt", "plan.json", "state.json"]
    assert ledger.commits.read() == {}
    assert ledger.execution() == {}, "they are those of the run before"


def test_a_worker_left_over_from_a_deleted_run_cannot_commit_into_what_came_after(ledger: Ledger, place: str) -> None:
    left_over = Ledger(place)
    left_over.plan()
    ledger.start_over(a_plan(shards=30))
    left_over.commits.add(make_commit(0))
    assert ledger.commits.shards() == set()
    assert ledger.commits.add(make_commit(0, "new"))
    assert ledger.commits.read()[0].attempt == "new"


def test_of_two_parents_that_start_over_one_deletes_nothing_of_the_others_run(
    ledger: Ledger, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.plan()
    listed, another = ledger.store.list, Ledger(place)

    def then_start_over(prefix: str = "", after: str = "") -> Any:
        found = list(listed(prefix, after))
        if prefix == "commits/":
            another.plan()
            another.start_over(a_plan(shards=30))
            another.store.put("parts/000000.new.parquet", b"x")
            another.commits.add(make_commit(0, "new"))
        return iter(found)

    monkeypatch.setattr(ledger.store, "list", then_start_over)
    assert ledger.start_over(a_plan()) == another.plan()
    monkeypatch.undo()
    assert _keys(ledger) == ["commits/000000", "parts/000000.new.parquet", "plan.json", "state.json"]


@pytest.mark.parametrize(("deletions", "done"), [(0, {0}), (1, set())])
def test_a_start_that_is_cut_short_leaves_a_run_that_can_be_resumed_or_started_over(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, deletions: int, done: set[int]
) -> None:
    """The new plan comes before anything of the old run goes: at no moment does a commit name a part that is gone."""
    _fill(ledger)
    delete_all, left = ledger.store.delete_all, [deletions]

    def cut_short(keys: Iterable[str]) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        delete_all(keys)

    monkeypatch.setattr(ledger.store, "delete_all", cut_short)
    with pytest.raises(KeyboardInterrupt):
        ledger.start_over(a_plan())
    assert ledger.find_plan() is not None
    assert ledger.commits.shards() == done


def _take_over(ledger: Ledger, clock: Clock) -> int:
    """Let all leases run out, take over shard 0, and return how many crashes are counted against it."""
    clock.now += 100
    claim = ledger.leases.take_over([0], "heir", 60, 60, 0)
    assert claim is not None
    return claim.crashes


def test_a_holder_that_was_told_to_stop_is_no_strike_against_its_shard(ledger: Ledger, clock: Clock) -> None:
    ledger.leases.take(0, "w1", 60)
    ledger.workers.beat("w1", {"state": "working"})
    assert _take_over(ledger, clock) == 1
    ledger.workers.beat("heir", {"state": "working", "told_to_stop": True})
    assert _take_over(ledger, clock) == 1
    ledger.workers.beat("heir", {"state": "stopped"})
    assert _take_over(ledger, clock) == 1
    ledger.workers.beat("heir", {"state": "failed"})
    assert _take_over(ledger, clock) == 2


def test_a_worker_whose_machine_was_taken_away_is_excused(ledger: Ledger) -> None:
    ledger.leases.take(0, "w1", 600)
    ledger.leases.take(1, "w2", 600)
    ledger.workers.beat("w1", {"state": "working"})
    ledger.excuse("w1")
    ledger.excuse("never-began")
    assert ledger.leases.read().keys() == {1}
    assert {w["id"]: w["state"] for w in ledger.workers.read()} == {"w1": "stopped"}
    assert ledger.leases.take(0, "heir", 600) is not None


def test_leases_of_a_later_version_are_read(ledger: Ledger) -> None:
    ledger.leases.take(0, "w1", 600)
    key = ledger.folder.key("leases", 0)
    ledger.store.put(key, json.dumps({**json.loads(ledger.store.get(key)), "of_a_later_version": 1}).encode())
    assert ledger.leases.read()[0].worker == "w1"
