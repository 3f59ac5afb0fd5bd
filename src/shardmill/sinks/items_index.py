"""An index of all items of an edition by one of their digests, in sorted runs that workers map into memory.

Design: docs/design/editions.md
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.ledger import Commit, Ledger
from shardmill.sinks.lineage import INDEX, MADE_FROM, SEEN, Lineages
from shardmill.store import LocalStore, Store, replacing

_SCHEMA = pa.schema(
    [
        # A digest of an item, in two halves; sorted by the first.
        pa.field("head", pa.uint64()),
        pa.field("tail", pa.uint64()),
        pa.field("shard", pa.uint32()),
        # Its place in the shard.
        pa.field("item", pa.uint32()),
    ]
)
_RUN_ITEMS = 1 << 20
_COPIED_BYTES = 4 << 20

Rows = NDArray[np.int64]


class EarlierItems:
    """The items of an edition, found by what they were made from, or by another `digest` of their lineage.

    They are in sorted runs, each of about a million items of consecutive shards, in a folder of `store`. Whoever needs
    a run that is not there makes it; two that make it write the same.
    """

    def __init__(
        self, store: Store, lineages: Lineages, commits: Sequence[Commit], worker: str = "", digest: str = MADE_FROM
    ) -> None:
        self._store, self._lineages, self._digest = store, lineages, digest
        self._commits = [*_in_runs(commits)]
        # Workers begin at different runs.
        first = zlib.crc32(worker.encode()) % max(1, len(self._commits))
        runs = range(len(self._commits))
        self._runs: dict[int, _Run] = {}
        # The run in which most items of the last block were is looked at first.
        self._order = [*runs[first:], *runs[:first]]

    def find(self, digests: pa.Array) -> tuple[NDArray[np.bool_], Rows, Rows]:
        """Which of these are among the items, and of each of those its shard and its place there."""
        halves = _halves(digests)
        left = np.flatnonzero(digests.is_valid().to_numpy(zero_copy_only=False))
        left = left[np.argsort(halves[left, 0], kind="stable")]
        shards, items = np.zeros(len(halves), np.int64), np.zeros(len(halves), np.int64)
        found, most = np.zeros(len(halves), bool), 0
        for run in list(self._order):
            if not len(left):
                break
            if run not in self._runs:
                self._runs[run] = self._open(run)
            places = self._runs[run].find(halves[left])
            here = places >= 0
            found[left[here]] = True
            shards[left[here]], items[left[here]] = self._runs[run].at(places[here])
            if (count := int(here.sum())) > most:
                most = count
                self._order.remove(run)
                self._order.insert(0, run)
            left = left[~here]
        return found, shards[found], items[found]

    def _open(self, run: int) -> _Run:
        key = f"{INDEX}{'' if self._digest == MADE_FROM else self._digest + '-'}{run:06d}.arrow"
        # Whoever completes the edition deletes it, perhaps between two of these calls.
        with suppress(FileNotFoundError):
            if self._store.head(key) is not None:
                return _Run(pa.ipc.open_file(_map(self._store, key)).read_all())
        table = _make_run(self._lineages, self._commits[run], self._digest)
        with replacing(key, self._store) as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        with suppress(FileNotFoundError):
            return _Run(pa.ipc.open_file(_map(self._store, key)).read_all())
        return _Run(table)


class _Run:
    """Items sorted by their digests."""

    def __init__(self, table: pa.Table) -> None:
        columns = [table.column(name).combine_chunks().to_numpy() for name in _SCHEMA.names]
        self._heads, self._tails, self._shards, self._items = columns

    def find(self, halves: NDArray[np.uint64]) -> Rows:
        """Where each of these digests is, -1 for one that is not there."""
        at = np.searchsorted(self._heads, halves[:, 0])
        found = np.full(len(at), -1)
        left = np.flatnonzero(at < len(self._heads))
        while len(left := left[self._heads[at[left]] == halves[left, 0]]):
            is_same = self._tails[at[left]] == halves[left, 1]
            found[left[is_same]] = at[left[is_same]]
            # Two digests may have the same first half.
            left = left[~is_same]
            at[left] += 1
            left = left[at[left] < len(self._heads)]
        return found

    def at(self, places: Rows) -> tuple[Rows, Rows]:
        return self._shards[places].astype(np.int64), self._items[places].astype(np.int64)


def delete_index(ledger: Ledger) -> None:
    """Once an edition is complete, nobody looks items up."""
    ledger.store.delete_all([entry.key for entry in ledger.store.list(INDEX)])


def _in_runs(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    held: list[Commit] = []
    for commit in commits:
        held.append(commit)
        if sum(each.rows for each in held) >= _RUN_ITEMS:
            yield held
            held = []
    if held:
        yield held


def count_known(lineages: Lineages, commits: Sequence[Commit]) -> int:
    """How many items may be taken over."""
    every = (lineages.read(commit) for commit in commits if commit.part)
    return sum(len(each) - int(each.column("made_from").null_count) for each in every if each is not None)


def _make_run(lineages: Lineages, commits: Sequence[Commit], digest: str) -> pa.Table:
    """The items of these parts, sorted, each digest once.

    Two rows that tell the same of their change are of one shard, and may differ: neither is known again.
    """
    pieces = [
        piece for commit in commits if commit.part and (piece := _list_items(lineages, commit, digest)) is not None
    ]
    table = pa.concat_tables([_SCHEMA.empty_table(), *pieces]).combine_chunks()
    head, tail = (table.column(name).to_numpy() for name in ("head", "tail"))
    # Those with the same first half may be in any order: `find` looks at both.
    order = np.lexsort((tail, head)) if digest == SEEN else np.argsort(head, kind="stable")
    is_first = np.ones(len(order), bool)
    is_first[1:] = (head[order[1:]] != head[order[:-1]]) | (tail[order[1:]] != tail[order[:-1]])
    if digest == SEEN:
        is_first[:-1] &= is_first[1:]
    return table.take(pa.array(order[is_first])).combine_chunks()


def _list_items(lineages: Lineages, commit: Commit, digest: str) -> pa.Table | None:
    """The items of a part that may be taken over; None if its lineage is not known, or lacks the digest."""
    if (lineage := lineages.read(commit)) is None or digest not in lineage.schema.names:
        return None
    made = lineage.column(digest).combine_chunks()
    known = np.flatnonzero(made.is_valid().to_numpy(zero_copy_only=False))
    halves = _halves(made)[known]
    columns = [halves[:, 0], halves[:, 1], np.full(len(known), commit.shard), known]
    return pa.table([pa.array(c).cast(f.type) for c, f in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA)


def _halves(digests: pa.Array) -> NDArray[np.uint64]:
    """Digests of 16 bytes as two numbers each; those of nulls may be any."""
    data = digests.cast(pa.binary(16)).buffers()[1]
    if data is None:
        return np.zeros((len(digests), 2), np.uint64)
    return np.frombuffer(data, "<u8").reshape(-1, 2)[digests.offset : digests.offset + len(digests)]


def _map(store: Store, key: str) -> Any:
    """A file of the index, mapped into memory; of an object store, a copy of it that nobody else sees."""
    if isinstance(store, LocalStore):
        return pa.memory_map(str(store.path(key)))
    with NamedTemporaryFile() as copy, store.reader(key) as file:
        shutil.copyfileobj(file, copy, _COPIED_BYTES)
        copy.flush()
        return pa.memory_map(copy.name)
