"""The rows of an edition of a run as they are delivered, and what two editions differ in.

What a row is, its part's lineage says: only rows that differ are read. Design: docs/design/delivery.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.hashing import Hashes, bind
from shardmill.ledger import Commit, Ledger
from shardmill.plan import ITEM, Plan
from shardmill.results.windows import has_windows
from shardmill.sinks.digests import hash_contents, hash_kept
from shardmill.sinks.lineage import read_lineage
from shardmill.sinks.parquet import read_part, read_rows_at
from shardmill.store.parts import readable
from shardmill.tasks import open_task
from shardmill.tasks.base import WINDOW

Places = NDArray[np.int64]


def read_rows_of(ledger: Ledger, commit: Commit) -> Iterator[pa.RecordBatch]:
    """The rows of a shard, without the number of an item in it."""
    for batch in read_part(ledger.store, commit):
        at = batch.schema.get_field_index(ITEM)
        yield batch if at < 0 else batch.remove_column(at)


class EditionRows:
    """The rows of consecutive shards of an edition, each with its place among them."""

    def __init__(self, ledger: Ledger, plan: Plan, commits: Sequence[Commit]) -> None:
        self._ledger, self._plan = ledger, plan
        self._commits = [commit for commit in commits if commit.rows_in_part]
        self._starts = np.cumsum([0, *(commit.rows_in_part for commit in self._commits)])
        output = open_task(plan.work.task, plan.work.params).output
        self._made = [name for name in output.names if name != WINDOW]

    def hashes(self) -> Hashes:
        """A hash of each row, of all that it has; it is the same in every edition and in every store."""
        return np.concatenate([np.zeros(0, np.uint64), *(self._hash_part(commit) for commit in self._commits)])

    def hash(self, rows: pa.RecordBatch) -> Hashes:
        """The same of rows that were read."""
        contents = hash_contents(rows.select(self._made), hash_kept(rows.select(list(self._plan.kept))))
        if has_windows(self._plan, rows.schema):
            return bind(contents, rows.column(WINDOW).fill_null(0).to_numpy())
        return bind(contents, np.zeros(rows.num_rows, np.int64))

    def read(self, places: Places, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows at these places, which are in order."""
        shards = np.searchsorted(self._starts, places, "right") - 1
        for shard in np.unique(shards).tolist():
            own = places[shards == shard] - self._starts[shard]
            for batch in read_rows_at(self._ledger.store, self._commits[shard], own, list(columns)):
                yield batch.select(list(columns))

    def _hash_part(self, commit: Commit) -> Hashes:
        store = self._ledger.store
        with readable(f"{store.url}/{commit.part}"), store.reader(commit.part) as file:
            lineage = read_lineage(file)
        if lineage is not None:
            rows = lineage.column("rows").combine_chunks()
            counts = np.diff(rows.offsets.to_numpy().astype(np.int64))
            numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            if len(numbers) == commit.rows_in_part:
                return bind(rows.flatten().to_numpy(), numbers)
        return np.concatenate([self.hash(batch) for batch in read_rows_of(self._ledger, commit)])


def find_surplus(mine: Hashes, others: Hashes) -> Places:
    """The places of values in `mine` that `others` has not, or not as often.

    >>> find_surplus(np.array([7, 5, 7, 3], np.uint64), np.array([3, 7], np.uint64)).tolist()
    [1, 2]
    """
    order = np.argsort(mine, kind="stable")
    values, there = mine[order], np.sort(others)
    nth = np.arange(len(values)) - np.searchsorted(values, values)
    times = np.searchsorted(there, values, "right") - np.searchsorted(there, values)
    return np.sort(order[nth >= times])
