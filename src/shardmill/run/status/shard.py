"""Everything that a run folder knows about one shard."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shardmill.core.errors import UsageError
from shardmill.ledger import Ledger
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
        "first_rows": _first_rows(ledger, commit.part, 3) if commit and commit.part else [],
    }


def _first_rows(ledger: Ledger, part: str, count: int) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from shardmill.sinks.parquet import readable_part

    with readable_part(ledger.store, part), ledger.store.reader(part) as file:
        opened = pq.ParquetFile(file)
        names = [f.name for f in opened.schema_arrow if not pa.types.is_fixed_size_list(f.type)]
        if not names:
            return []
        first = next(opened.iter_batches(batch_size=count, columns=names), None)
        return list(first.to_pylist()) if first is not None else []
