"""A plan and commits for a ledger, without a source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardmill.ledger import Commit
from shardmill.plan import Plan, Shard, SourceFile, SourceStat
from shardmill.plan.spec import Work


def make_commit(shard: int, attempt: str = "a1", **changes: Any) -> Commit:
    record = Commit(
        shard=shard,
        plan="p",
        generation="g",
        attempt=attempt,
        part=f"parts/{shard:06d}.{attempt}.parquet",
        digest="d",
        part_bytes=1,
        rows=10,
        lines=10,
        errors=0,
        errors_file="",
        tokens=5,
        truncated=0,
        worker="w",
        device="cpu",
        finished_at=1.0,
        seconds=1.0,
    )
    return replace(record, **changes)


def a_plan(text: str = "text", shards: int = 3, task: str = "embed") -> Plan:
    stat = SourceStat("jsonl", (SourceFile("/x.jsonl", 30, "t", "e"),), {"id": "string"})
    work = Work(source=("/x.jsonl",), text=text, task=task)
    return Plan.of(work, stat, {"weights": "1"}, [Shard(i, 0, 10 * i, 10 * i + 10, 10) for i in range(shards)])
