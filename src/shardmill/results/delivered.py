"""Compares what a store has with the rows of a run: every row, by hashes of its key and of its content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from shardmill.results.delivery import read_rows_of, shipment_of
from shardmill.results.report import Check
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Delivery, Shipment
from shardmill.sinks.points.base import PointDelivery

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """How the rows of a store differ from those of a run; hashes of keys, or of whole rows if rows have no key.

    Of `leftover` rows the store has what the run has no more, such as later windows; `unstored` ones have no vector,
    in a store of vectors.
    """

    missing: Hashes
    changed: Hashes
    doubled: Hashes
    others: int
    leftover: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))
    unstored: int = 0

    @property
    def any(self) -> bool:
        return any(map(len, (self.missing, self.changed, self.doubled, self.leftover)))


def check_delivery(ledger: Ledger, plan: Plan, address: str, commits: dict[int, Commit]) -> Check:
    """Whether a store has every row of the run once, and as it is there."""
    shipment = shipment_of(ledger, plan)
    parts = [commits[shard] for shard in sorted(commits)]
    try:
        store = open_delivery(address, shipment)
        try:
            found = _look(store, _rows(ledger, parts), shipment)
        finally:
            store.close()
    except ShardmillError as error:
        return Check("delivered", False, error.message)
    rows = sum(commit.rows_in_part for commit in parts) - found.unstored
    seen = f"{rows - len(found.missing) - len(found.changed):,} of {rows:,} rows are in {address} as in the run"
    for what in ("missing", "changed", "doubled", "left over"):
        if len(hashes := getattr(found, what.replace(" ", ""))):
            seen += f", {len(hashes):,} {what}{_name(ledger, parts, shipment, hashes)}"
    if found.unstored:
        seen += f"; {found.unstored:,} rows have no vector, and are not stored there"
    if found.others:
        seen += f"; {found.others:,} rows there are not of this run"
    return Check("delivered", not found.any, seen)


def _look(store: Delivery, rows: Iterator[pa.RecordBatch], shipment: Shipment) -> Discrepancy:
    if isinstance(store, PointDelivery):
        seen = compare_points(store, rows)
        return Discrepancy(
            seen.missing, seen.changed, seen.doubled, seen.others, leftover=seen.leftover, unstored=seen.without_vector
        )
    return _compare(_hash(rows, shipment), _hash(store.scan(), shipment))


def _rows(ledger: Ledger, parts: Iterable[Commit]) -> Iterator[pa.RecordBatch]:
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
    same = np.isin(_bind(*wanted), _bind(*found))
    changed = np.setdiff1d(np.unique(wanted[0][~same]), np.concatenate([missing, short]))
    others = int(len(found[0]) - times[place].sum())
    return Discrepancy(np.concatenate([missing, short]), changed, doubled, others)


def _bind(keys: Hashes, contents: Hashes) -> NDArray[np.uint64]:
    return keys * np.uint64(31) + contents


def _name(ledger: Ledger, parts: Iterable[Commit], shipment: Shipment, hashes: Hashes) -> str:
    """The first few of the rows with these hashes, by their keys."""
    if not shipment.key:
        return ""
    names: list[str] = []
    for batch in _rows(ledger, parts):
        keys = batch.select(list(shipment.key))
        for at in np.flatnonzero(np.isin(hash_rows(keys), hashes))[: _NAMED - len(names)]:
            row: dict[str, Any] = keys.slice(int(at), 1).to_pylist()[0]
            names.append("/".join(map(str, row.values())))
        if len(names) >= _NAMED:
            break
    return f" ({', '.join(names)}{', …' if len(hashes) > len(names) else ''})"
