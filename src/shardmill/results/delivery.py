"""Delivers the rows of a finished run to another store, shard by shard, and proves that it has them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from shardmill.core.console import Bar
from shardmill.core.errors import ShardmillError
from shardmill.ledger import Commit, Ledger
from shardmill.plan import ITEM, Plan
from shardmill.results.merge import part_schema
from shardmill.results.report import Check
from shardmill.sinks.address import open_delivery
from shardmill.sinks.parquet import read_part


def deliver_run(ledger: Ledger, plan: Plan, address: str, *, quiet: bool = True) -> dict[str, int]:
    """Deliver every shard that the store does not have as it was committed. After a kill, the rest is delivered."""
    commits = ledger.commits.read_complete(plan)
    store = open_delivery(address, plan, part_schema(ledger, plan))
    made = 0
    try:
        there = store.delivered()
        with Bar("delivering", quiet=quiet) as bar:
            for commit in commits:
                if there.get(commit.shard) != commit.digest:
                    store.deliver(commit.shard, commit.digest, _rows(ledger, commit))
                    made += 1
                bar.at((commit.shard + 1) / len(commits), f"{commit.shard + 1:,} of {len(commits):,} shards")
    finally:
        store.close()
    return {"delivered": made, "shards": len(commits)}


def check_delivery(ledger: Ledger, plan: Plan, address: str, commits: dict[int, Commit]) -> Check:
    """Compare what a store has with the parts of the run, row by row."""
    try:
        store = open_delivery(address, plan, part_schema(ledger, plan))
    except ShardmillError as error:
        return Check("delivered", False, error.message)
    try:
        there = store.delivered()
        missing = [shard for shard, commit in commits.items() if there.get(shard) != commit.digest]
        differ = [s for s, c in commits.items() if s not in missing and not _is_same(store.read(s), _rows(ledger, c))]
    except ShardmillError as error:
        return Check("delivered", False, error.message)
    finally:
        store.close()
    seen = f"{len(commits) - len(missing):,} of {len(commits):,} shards are in {address}"
    seen += f", {len(differ)} of them differ" if differ else ", row by row as in the run" if not missing else ""
    return Check("delivered", not missing and not differ, seen)


def _rows(ledger: Ledger, commit: Commit) -> Iterator[pa.RecordBatch]:
    """The rows of a shard, without the number of an item in it."""
    for batch in read_part(ledger.store, commit):
        at = batch.schema.get_field_index(ITEM)
        yield batch if at < 0 else batch.remove_column(at)


def _is_same(found: Iterator[pa.RecordBatch], wanted: Iterator[pa.RecordBatch]) -> bool:
    here, there = (pa.Table.from_batches(batches) if (batches := list(each)) else None for each in (wanted, found))
    if here is None or there is None:
        return (0 if here is None else here.num_rows) == (0 if there is None else there.num_rows)
    if here.num_rows != there.num_rows:
        return False
    return bool(here.combine_chunks().equals(there.cast(here.schema).combine_chunks()))
