"""Everything that a run folder knows about one shard."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shardmill.core.errors import UsageError
from shardmill.ledger import Commit, Ledger
from shardmill.plan import Plan


def describe_shard(ledger: Ledger, plan: Plan, index: int) -> dict[str, Any]:
    """Everything the folder knows about one shard."""
    if not 0 <= index < len(plan.shards):
        raise UsageError(f"--shard {index}: this run has shards 0 to {len(plan.shards) - 1}.")
    shard = plan.shards[index]
    commit, lease = ledger.commits.read().get(index), ledger.leases.read().get(index)
    return {
        "shard": index,
        "file": plan.stat.files[shard.file].place,
        "start": shard.start,
        "stop": shard.stop,
        **({"files": shard.files} if shard.files > 1 else {}),
        **({"low": shard.low, "high": shard.high} if shard.high is not None else {}),
        "commit": asdict(commit) if commit else None,
        "lease": asdict(lease) if lease else None,
        "errors": list(ledger.errors.read(commit)) if commit else [],
        "first_rows": _first_rows(ledger, commit, 3) if commit and commit.part else [],
    }


def _first_rows(ledger: Ledger, commit: Commit, count: int) -> list[dict[str, Any]]:
    import pyarrow as pa

    from shardmill.sinks.parquet import read_part, read_schema

    names = [f.name for f in read_schema(ledger.store, commit) if not pa.types.is_fixed_size_list(f.type)]
    first = next(read_part(ledger.store, commit, names), None) if names else None
    return list(first.slice(0, count).to_pylist()) if first is not None else []
