"""Compares what a store has with the rows of a run: every row, by hashes of its key and of its content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import ShardmillError
from shardmill.core.hashing import Hashes, hash_rows
from shardmill.ledger import Commit, Ledger
from shardmill.plan import Plan
from shardmill.results.delivered_points import compare_points
from shardmill.results.delivery import shipment_of
from shardmill.results.edition_rows import read_rows_of
from shardmill.results.report import Check
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Delivery, Shipment
from shardmill.sinks.points.base import PointDelivery

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """How the rows of a store differ from those of a run; hashes of keys, or of whole rows if rows have no key.

    Of `leftover` rows the store has what the run has no more, such as later windows; `unstored` ones have no vector,
    in a store of vectors. Where rows of `shared` keys are doubled, some have another content, and may be of others.
    """

    missing: Hashes
    changed: Hashes
    doubled: Hashes
    others: int
    leftover: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))
    unstored: int = 0
    shared: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))

    @property
    def any(self) -> bool:
        return any(map(len, (self.missing, self.changed, self.doubled, self.leftover)))

    @property
    def repairable(self) -> Hashes:
        """The keys whose rows there are nobody else's, and wrong."""
        return np.setdiff1d(np.concatenate([self.missing, self.changed, self.doubled]), self.shared)


def check_delivery(ledger: Ledger, plan: Plan, address: str, commits: dict[int, Commit]) -> Check:
    """Whether a store has every row of the run once, and as it is there."""
    shipment = shipment_of(ledger, plan)
    parts = [commits[shard] for shard in sorted(commits)]
    try:
        store = open_delivery(address, shipment)
        try:
            found = compare(store, read_all(ledger, parts))
            gone = store.count_gone()
        finally:
            store.close()
    except ShardmillError as error:
        return Check("delivered", False, error.message)
    rows = sum(commit.rows_in_part for commit in parts) - found.unstored
    seen = f"{rows - len(found.missing) - len(found.changed):,} of {rows:,} rows are in {address} as in the run"
    seen += describe(found, lambda hashes: name_keys(ledger, parts, shipment, hashes))
    if found.unstored:
        seen += f"; {found.unstored:,} rows have no vector, and are not stored there"
    if found.others:
        seen += f"; {found.others:,} rows there are not of this run"
    if gone:
        seen += f"; {gone:,} rows there are marked as gone"
    return Check("delivered", not found.any, seen)


def describe(found: Discrepancy, name: Callable[[Hashes], str]) -> str:
    """What is wrong, in words that follow others."""
    seen = ""
    for what in ("missing", "changed", "doubled", "left over"):
        if len(hashes := getattr(found, what.replace(" ", ""))):
            seen += f", {len(hashes):,} {what}{name(hashes)}"
    return seen


def compare(store: Delivery, rows: Iterator[pa.RecordBatch]) -> Discrepancy:
    """Compare what a store has with the rows of a run."""
    if isinstance(store, PointDelivery):
        seen = compare_points(store, rows)
        return Discrepancy(
            seen.missing, seen.changed, seen.doubled, seen.others, leftover=seen.leftover, unstored=seen.without_vector
        )
    return _compare(_hash(rows, store.shipment), _hash(store.scan(), store.shipment))


def read_all(ledger: Ledger, parts: Iterable[Commit]) -> Iterator[pa.RecordBatch]:
    """The rows of a run, as they are delivered."""
    for commit in parts:
        yield from read_rows_of(ledger, commit)


def _hash(batches: Iterator[pa.RecordBatch], shipment: Shipment) -> tuple[Hashes, Hashes]:
    """Hashes of the keys, and of the contents; of rows without a key, the content is the key."""
    keys, contents = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for batch in batches:
        contents.append(hash_rows(batch))
        keys.append(hash_rows(batch.select(list(shipment.key))) if shipment.key else contents[-1])
    return np.concatenate(keys), np.concatenate(contents)


def _compare(wanted: tuple[Hashes, Hashes], found: tuple[Hashes, Hashes]) -> Discrepancy:
    """A key may be in a run more than once: then it is there as often, and their contents are compared as sets."""
    keys, counts = np.unique(wanted[0], return_counts=True)
    there, times = np.unique(found[0], return_counts=True)
    common, here, place = np.intersect1d(keys, there, assume_unique=True, return_indices=True)
    missing = np.setdiff1d(keys, there, assume_unique=True)
    short = common[times[place] < counts[here]]
    doubled = common[times[place] > counts[here]]
    mine, wanted_times = np.unique(_bind(*wanted), return_counts=True)
    seen, seen_times = np.unique(_bind(*found), return_counts=True)
    _, at, where = np.intersect1d(mine, seen, assume_unique=True, return_indices=True)
    wanted_times[at] -= seen_times[where]
    lacking = wanted[0][np.isin(_bind(*wanted), mine[wanted_times > 0])]
    changed = np.setdiff1d(lacking, np.concatenate([missing, short]))
    strange = found[0][~np.isin(_bind(*found), mine)]
    others = int(len(found[0]) - times[place].sum())
    shared = np.intersect1d(doubled, strange)
    return Discrepancy(np.concatenate([missing, short]), changed, doubled, others, shared=shared)


def _bind(keys: Hashes, contents: Hashes) -> NDArray[np.uint64]:
    return keys * np.uint64(31) + contents


def name_keys(ledger: Ledger, parts: Iterable[Commit], shipment: Shipment, hashes: Hashes) -> str:
    """The first few of the rows with these hashes, by their keys."""
    if not shipment.key:
        return ""
    names: list[str] = []
    for batch in read_all(ledger, parts):
        keys = batch.select(list(shipment.key))
        for at in np.flatnonzero(np.isin(hash_rows(keys), hashes))[: _NAMED - len(names)]:
            row: dict[str, Any] = keys.slice(int(at), 1).to_pylist()[0]
            names.append("/".join(map(str, row.values())))
        if len(names) >= _NAMED:
            break
    return f" ({', '.join(names)}{', …' if len(hashes) > len(names) else ''})"
