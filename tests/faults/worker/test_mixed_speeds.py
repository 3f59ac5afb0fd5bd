"""Fast and slow workers on one run: where they are pinned, and who takes the last shards."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.engines import local
from shardmill.engines.local import LocalEngine
from shardmill.ledger import Ledger
from shardmill.ledger.record import encode
from shardmill.run import Run
from shardmill.run.planner import make_plan
from shardmill.worker import Worker
from shardmill.worker.shards import OpenShards
from shardmill.worker.tail import is_left_to_others
from tests.support.corpora import fake_rows, fake_spec
from tests.support.ledgers import a_plan, make_commit
from tests.support.waiting import PATIENCE_S

Write = Callable[..., Path]


def _place(run: Path, source: Path, params: dict[str, Any] | None = None, **execution: Any) -> Ledger:
    spec = fake_spec(source, params=params, **execution)
    ledger = Ledger(run)
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger


def _wait_to_end(placement: local.LocalPlacement, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    try:
        while placement.poll():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        placement.stop()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins nothing")
def test_a_worker_is_pinned_and_says_so(tmp_path: Path, write_jsonl: Write) -> None:
    cpu = max(os.sched_getaffinity(0))
    ledger = _place(tmp_path / "run", write_jsonl(fake_rows(50)))
    _wait_to_end(LocalEngine([Device("cpu", "cpu", cpus=(cpu,)), Device("cpu", "cpu")]).start(ledger.url))
    assert sorted(w["cpus"] for w in ledger.workers.read()) == ["", str(cpu)]


def _slow(seconds: float) -> Callable[[str, int], None]:
    return lambda step, shard: time.sleep(seconds) if step == "batch" else None


def _race(ledger: Ledger) -> tuple[list[float], float]:
    """A run by a fast and a slow worker: seconds of the slow one's shards, and how long the fast one waited for it."""
    devices = {"fast": Device("cuda", "H1"), "slow": Device("cpu", "cpu")}
    hooks = {"fast": _slow(0.02), "slow": _slow(0.8)}
    workers = [Worker(Ledger(ledger.url), device=devices[n], name=n, on_step=hooks[n]) for n in devices]
    threads = [threading.Thread(target=w.work, daemon=True) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    ended = {n: [c for c in ledger.commits.read().values() if c.worker == n] for n in devices}
    last = {n: max(c.finished_at for c in ended[n]) for n in devices}
    return [c.seconds for c in ended["slow"]], last["slow"] - last["fast"]


def test_a_slow_worker_does_its_share_and_leaves_the_tail_to_the_fast_one(tmp_path: Path, write_jsonl: Write) -> None:
    """A shard takes the slow one about 1.6 s, and the fast one does the rest in six; the lease rules out shadows."""
    rows = fake_rows(1600)
    ledger = _place(tmp_path / "run", write_jsonl(rows), lease_s=8.0, batch_tokens=300, shard_bytes=1_000)
    took_s, waited_s = _race(ledger)
    assert len(took_s) >= 2
    assert waited_s < min(took_s), "it began none that the fast one would have done meanwhile"
    run = Run(tmp_path / "run")
    assert run.table(["id"]).column("id").to_pylist() == [r["id"] for r in rows]
    spent = {w.worker: w.usd for w in run.cost(usd_per_hour=3600).workers}
    assert spent["fast"]
    assert spent["slow"] == 0, "the CPU comes with the GPU beside it"


def _peer(speed: float, kind: str = "cuda") -> dict[str, Any]:
    return {"bytes_per_s": speed, "kind": kind}


@pytest.mark.parametrize(
    ("pace", "held", "speeds", "done", "left_to_others"),
    [
        (1.0, {}, [20.0], 0, False),
        (1.0, {}, [20.0], 9, False),
        (1.0, {}, [20.0], 10, False),
        (1.0, {}, [20.0], 11, True),
        (1.0, {29: 0}, [20.0], 0, True),
        (1.0, {29: 8}, [20.0], 0, False),
        (1.0, {}, [10.0, 30.0], 0, True),
        (1.0, {}, [2.0] * 20, 29, False),
        (5.0, {}, [20.0], 29, True),
        (10.0, {}, [20.0], 29, False),
        (1.0, {}, [20.0], 30, False),
        (0.0, {}, [20.0], 29, False),
        (0.0, {3: 0}, [20.0], 0, True),
        (1.0, {3: 0}, [0.0], 0, True),
        (1.0, {}, [0.0], 29, False),
        (0.0, {3: 0}, [], 0, False),
    ],
)
def test_who_takes_one_more_of_thirty_shards_of_ten_bytes(
    tmp_path: Path, pace: float, held: dict[int, int], speeds: list[float], done: int, left_to_others: bool
) -> None:
    ledger = Ledger(tmp_path)
    plan = ledger.create(a_plan(shards=30))
    for shard in range(done):
        ledger.commits.add(make_commit(shard))
    peers = [_peer(speed) for speed in speeds]
    assert is_left_to_others(ledger, plan, "cpu", pace, held, peers)[0] is left_to_others


def test_who_is_overtaken_stops_at_the_next_renewal(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shard of more than a hundred batches; another commits it while the second runs, which lasts until then."""
    ledger = _place(tmp_path / "run", write_jsonl(fake_rows(400)), lease_s=0.8, batch_tokens=60, shard_bytes=1 << 20)
    batches, told, renew = 0, threading.Event(), OpenShards.renew

    def renewing(shards: OpenShards) -> None:
        renew(shards)
        if any(shard.lost for shard in shards.held()):
            told.set()

    def overtake(step: str, shard: int) -> None:
        nonlocal batches
        if step != "batch":
            return
        batches += 1
        if batches == 2:
            ((held, lease),) = ledger.leases.read().items()
            ledger.store.put(ledger.folder.key("leases", held), encode(replace(lease, shadow="another")))
            ledger.commits.add(make_commit(held, "theirs"))
            assert told.wait(PATIENCE_S)

    monkeypatch.setattr(OpenShards, "renew", renewing)
    assert Worker(Ledger(ledger.url), device=Device("cpu", "cpu"), on_step=overtake).work()
    assert batches == 2
    assert [c.attempt for c in ledger.commits.read().values()] == ["theirs"]
    assert ledger.leases.read() == {}
    assert list(ledger.store.list("parts/")) == []


def test_who_works_in_vain_does_not_hold_up_the_end(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LOOK_EVERY_S", 0.3)
    settings = {"batch_tokens": 100, "shard_bytes": 100_000}
    ledger = _place(tmp_path / "run", write_jsonl(fake_rows(200)), {"delay_s": 0.5}, **settings)
    placement = LocalEngine([Device("cpu", "cpu")]).start(ledger.url)
    while not ledger.leases.read():
        time.sleep(0.05)
        placement.poll()
    for shard in ledger.plan().shards:
        ledger.commits.add(make_commit(shard.index))
    _wait_to_end(placement, 8)
    assert ledger.leases.read() == {}
