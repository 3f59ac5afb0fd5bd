"""What the items of a part were made from, found anew for a part that an earlier version wrote without saying it.

Design: docs/design/editions.md
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shardmill.core.errors import SourceError, StaleResume, StoreError
from shardmill.core.hashing import add_sums, sum_hashes
from shardmill.ledger import Commit, Ledger
from shardmill.plan.salt import salt_of
from shardmill.results.items import StoredHashes
from shardmill.sinks.digests import digest_items, hash_items, hash_kept
from shardmill.sinks.lineage import make_lineage
from shardmill.sinks.parquet import read_part
from shardmill.sources import Fields, open_source
from shardmill.tasks import open_task
from shardmill.tasks.base import fields_of


def recover_lineage(base: Ledger, commit: Commit) -> pa.RecordBatch | None:
    """The lineage of a part, from the items of its shard, if their file is still the one that was read.

    None if it is not, or if the items or the rows are not those that were committed.
    """
    plan = base.plan()
    task, salt = open_task(plan.work.task, plan.work.params), salt_of(plan)
    made, kept, digests, taken, first = [], [], [], [], 0
    try:
        source = open_source(plan.stat, Fields.of(plan.work), plan.work.max_item_bytes)
        for batch in source.read(plan.shards[commit.shard]):
            made.append(digest_items(batch.texts, fields_of(task, batch.kept), salt))
            kept.append(hash_kept(batch.kept.select(list(plan.kept))))
            digests.append(sum_hashes(hash_items(batch.texts, kept[-1], first, batch.taken)))
            taken.append(np.ones(len(batch), bool) if batch.taken is None else batch.taken)
            first += len(batch)
    except (SourceError, StaleResume, StoreError):
        return None
    if first != commit.rows or not first or commit.items_digest not in ("", add_sums(digests)):
        return None
    hashes = StoredHashes(plan, task)
    for rows in read_part(base.store, commit):
        hashes.add(rows)
    stored = hashes.close()
    if commit.rows_digest not in ("", stored.digest):
        return None
    failed = ~np.concatenate(taken)
    failed[[int(record["row_in_shard"]) for record in base.errors.read(commit)]] = True
    carried, made_from = np.concatenate(kept), pa.concat_arrays(made)
    return make_lineage(made_from, carried, stored.items, stored.contents, np.flatnonzero(failed))
