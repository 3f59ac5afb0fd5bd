"""Looks for ids that occur twice among the first rows, before a run is begun with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from shardmill.core.hashing import hash_rows
from shardmill.core.template import NO_TEXT
from shardmill.sources.base import Fields, Shard, SourceStat
from shardmill.sources.formats import find_format

_MOST_ROWS, _MOST_S = 1_000_000, 2.0


def tell_doubles(stat: SourceStat, fields: Fields, shards: Sequence[Shard]) -> str | None:
    """What to tell about ids of files that occur twice among the first million rows, or those read in two seconds."""
    from shardmill.sources import open_source

    if not fields.id or fields.group_by or not find_format(stat.format).located or {*fields.id} & {*stat.origin}:
        return None
    source = open_source(stat, replace(fields, text=NO_TEXT, picture=""))
    found: list[pa.RecordBatch] = []
    rows, until = 0, time.monotonic() + _MOST_S
    for shard in shards:
        for batch in source.read(shard):
            there = np.ones(len(batch), bool) if batch.taken is None else batch.taken.copy()
            there[list(batch.bad)] = False
            found.append(batch.kept.select(list(fields.id)).filter(pa.array(there)))
            rows += len(batch)
            if rows >= _MOST_ROWS or time.monotonic() > until:
                return _tell(pa.Table.from_batches(found), fields.id, f"the first {rows:,} rows")
    return _tell(pa.Table.from_batches(found), fields.id, f"{rows:,} rows") if found else None


def _tell(ids: pa.Table, names: Sequence[str], where: str) -> str | None:
    ids = ids.drop_null()
    if not ids.num_rows:
        return None
    hashes = hash_rows(ids.combine_chunks().to_batches()[0])
    _, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
    doubled = counts > 1
    if not doubled.any():
        return None
    first = ids.slice(int(firsts[doubled].min()), 1).to_pylist()[0]
    again = int((counts[doubled] - 1).sum())
    shown = ", ".join(repr(value) for value in first.values())
    repeat = f"{again:,} repeat{'s' * (again == 1)} the {' and '.join(names)} of another"
    return (
        f"The ids are not unique: of {where}, {repeat}, for example {shown}. The result has all of them, but verify "
        "does not pass. Name more fields (--id a,b), or take --id auto or --id hash."
    )
