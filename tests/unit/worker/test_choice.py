"""How much of a source is left for one worker: less with each commit and each other worker."""

from __future__ import annotations

from pathlib import Path

from shardmill.ledger import Ledger
from shardmill.worker.choice import Choice
from tests.support.ledgers import a_plan, make_commit


def test_what_is_left_for_one_worker(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    plan = ledger.create(a_plan(shards=3))
    choice = Choice(ledger, plan, "me", kind="cuda", slot=0.0, lease_s=60.0)
    assert choice.left_bytes(1) == plan.stat.size_bytes == 30
    assert choice.left_bytes(2) == 15
    ledger.commits.add(make_commit(1))
    assert choice.left_bytes(1) == 20
    for name in ("one", "two", "me"):
        ledger.workers.beat(name, {"host": "elsewhere", "pid": 1, "state": "loading", "bytes_per_s": 0.0})
    assert choice.left_bytes(1) == 6
    for shard in (0, 2):
        ledger.commits.add(make_commit(shard))
    assert choice.left_bytes(1) == 1
