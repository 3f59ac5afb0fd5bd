"""What a source is compared with an edition by: files that are as they were, then the items of the others.

Design: docs/design/editions.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

import numpy as np

from shardmill.core.console import Bar
from shardmill.ledger import Editions, Ledger
from shardmill.plan import Plan, Shard
from shardmill.plan.salt import salt_of
from shardmill.results.items import hash_items_of
from shardmill.results.recovery import recover_lineage
from shardmill.run.changes import differences
from shardmill.run.costs.cost import read_cost
from shardmill.run.refreshed import Refreshed
from shardmill.run.refreshes import note_compared, was_compared
from shardmill.sinks.digests import digest_items
from shardmill.sinks.items_index import EarlierItems
from shardmill.sinks.lineage import Lineages
from shardmill.sinks.seen import SeenItems, find_newest
from shardmill.sinks.whole import is_final
from shardmill.sources import Fields, open_source
from shardmill.sources.sql import open_source as open_query
from shardmill.sources.unchanged import find_unchanged, is_doubtful
from shardmill.store import open_store
from shardmill.tasks import open_task
from shardmill.tasks.base import fields_of
from shardmill.worker.since import is_as_seen, leave_out


def is_unchanged(base: Ledger, plan: Plan, new: Plan, quiet: bool, *, writes: bool) -> bool:
    """Whether the source holds what the edition was made from.

    The rows of a query are read up to one that differs, and so are files that may have been written in a tick of the
    disk's clock. What was read is not read again, if that may be noted.
    """
    if differs(plan, new):
        return False
    if plan.work.query:
        ends = ((each.shards[-1].stop, each.shards[-1].high) for each in (plan, new))
        return next(ends) == next(ends) and _has_items(base, plan, new, plan.shards, quiet)
    pairs = zip(plan.stat.files, new.stat.files, strict=True)
    doubtful = {number for number, (was, now) in enumerate(pairs) if is_doubtful(was, now)}
    shards = [s for s in plan.shards if not doubtful.isdisjoint(range(s.file, s.file + s.files))]
    seen = _identify(base, new)
    if not shards or was_compared(base, seen):
        return True
    if not _has_items(base, plan, new, shards, quiet):
        return False
    if writes and all(new.stat.files[number].settled for number in doubtful):
        note_compared(base, seen)
    return True


def _has_items(base: Ledger, plan: Plan, new: Plan, shards: Sequence[Shard], quiet: bool) -> bool:
    """Whether the source has the items that these shards were made from. Of some, earlier versions did not say it."""
    commits, read = base.commits.read(), hash_items_of(replace(plan, stat=new.stat))
    newest = find_newest(plan, new)
    query = open_query(new.stat, Fields.of(new.work), new.work.max_item_bytes) if newest else None
    lineages = Lineages(base.store, base, recover_lineage)
    with Bar("comparing", quiet=quiet) as bar:
        for number, shard in enumerate(shards):
            bar.at(number / len(shards), f"{number:,} of {len(shards):,} shards")
            commit = commits[shard.index]
            if query is not None and is_as_seen(query.read_since(shard, newest), lineages.read(commit), new.kept):
                continue
            said = commit.items_digest
            if (said or plan.work.query) and said != read(shard).digest:
                return False
    return True


def _identify(base: Ledger, new: Plan) -> str:
    """A name for the state of all files as this edition is compared with them."""
    files = [[file.place, *file.identity[:4], file.settled] for file in new.stat.files]
    return hashlib.sha256(json.dumps([base.url, files]).encode()).hexdigest()[:32]


def differs(plan: Plan, new: Plan) -> bool:
    """Whether the source is another than the one that the edition was made from."""
    same = new.work.model_copy(update={"edition": plan.work.edition})
    return bool(differences(plan, Plan.of(same, new.stat, new.fingerprint, new.shards)))


def count_changes(base: Ledger, new: Plan, number: int, before: int, quiet: bool) -> Refreshed:
    """What a refresh would do, by the items of the source; nothing is computed, and nothing is written."""
    task = open_task(new.work.task, new.work.params)
    salt = salt_of(new)
    source = open_source(new.stat, Fields.of(new.work), new.work.max_item_bytes)
    items = reused = read = 0
    plan = base.plan()
    commits = base.commits.read_complete(plan)
    whole = find_unchanged(plan, new) if salt == salt_of(plan) else {}
    by_shard = {commit.shard: commit for commit in commits}
    newest = find_newest(plan, new) if salt == salt_of(plan) else ""
    with Bar("comparing", quiet=quiet) as bar, TemporaryDirectory() as folder:
        store = open_store(folder)
        lineages = Lineages(store, base, recover_lineage)
        known = EarlierItems(store, lineages, commits)
        source = leave_out(source, new, SeenItems(store, lineages, commits, newest, "") if newest else None)
        for shard in new.shards:
            commit = by_shard.get(whole.get(shard.index, -1))
            lineage = lineages.read(commit) if commit is not None and is_final(commit) else None
            if commit is not None and lineage is not None:
                items += commit.rows - commit.dropped * plan.work.takes_part
                reused += len(lineage) - int(lineage.column("made_from").null_count)
            for batch in source.read(shard) if lineage is None else ():
                taken = np.ones(len(batch), bool) if batch.taken is None else batch.taken
                found, _, _ = known.find(digest_items(batch.texts, fields_of(task, batch.kept), salt))
                found[[*batch.bad]] = False
                found |= False if batch.left_out is None else batch.left_out
                items += int(taken.sum())
                reused += int((found & taken).sum())
            read += shard.weight_bytes
            bar.at(read / max(1, new.weight_bytes), f"{items:,} items")
    seconds, usd = pace(base, plan)
    computed = items - reused
    return Refreshed(
        *(Editions(base.url).run, number, True, before, items, reused, computed),
        dry_run=True,
        seconds=0.0 if seconds is None else seconds * computed,
        seconds_saved=None if seconds is None else seconds * reused,
        usd=None if usd is None else usd * computed,
        usd_saved=None if usd is None else usd * reused,
    )


def pace(base: Ledger, plan: Plan) -> tuple[float | None, float | None]:
    """Device-seconds and dollars per item that this edition computed; None if it computed none, or has no price."""
    commits = base.commits.read_complete(plan)
    computed = sum(commit.rows - commit.reused for commit in commits)
    if not computed:
        return None, None
    seconds = sum(commit.timings.get("device_s", 0.0) for commit in commits)
    usd = read_cost(base, plan).usd
    return seconds / computed, None if usd is None else usd / computed
