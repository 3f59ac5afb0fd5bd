"""Repairs what was delivered: rows that a store lost, or has changed or doubled, are replaced by those of the run.

Design: docs/design/delivery.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.console import count
from shardmill.core.errors import StoreError, UsageError
from shardmill.core.hashing import Hashes, hash_rows
from shardmill.ledger import Commit, Ledger
from shardmill.plan import Plan
from shardmill.results.delivered import Discrepancy, compare, describe, name_keys, read_all
from shardmill.results.delivery import deliver_run, shipment_of
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Delivery, Shipment

# The keys of one step: a condition that names more of them is slow to read.
_KEYS_AT_ONCE = 10_000
# A step is refused if another process changes the table meanwhile; then everything is compared again.
_ROUNDS = 5


def repair_run(ledger: Ledger, plan: Plan, address: str, *, quiet: bool = True) -> dict[str, Any]:
    """Deliver what the store does not have, then replace the rows there that are not those of the run."""
    shipment = shipment_of(ledger, plan)
    if not shipment.key:
        raise UsageError(
            f"{address} cannot be repaired: nothing identifies the rows.",
            hint="Run it with --id COLUMN, or deliver this run to another place.",
        )
    found = deliver_run(ledger, plan, address, again=True, quiet=quiet)
    store = open_delivery(address, shipment)
    try:
        repaired = repair(ledger, store, found["lots"], ledger.commits.read_complete(plan))
    finally:
        store.close()
    return {**found, "done": [*found["done"], f"{count(repaired, 'row')} repaired"]}


def repair(ledger: Ledger, store: Delivery, lots: int, commits: Sequence[Commit]) -> int:
    """Make a store that has all `lots` have every row of the run once; returns the keys whose rows were wrong.

    A row with an id of the run and another content, beside the one of the run, may be of others: it is left and told.
    """
    repaired: Hashes = np.zeros(0, np.uint64)
    for _ in range(_ROUNDS):
        found = compare(store, read_all(ledger, commits))
        if not (store.counts and len(found.repairable)):
            break
        repaired = np.union1d(repaired, found.repairable)
        for rows in _gather(lambda: read_all(ledger, commits), store.shipment, found.repairable):
            if not store.replace(lots, rows):
                break
    if found.any:
        raise _left(ledger, store, commits, found)
    return len(repaired)


def _gather(read: Callable[[], Iterator[pa.RecordBatch]], shipment: Shipment, keys: Hashes) -> Iterator[pa.RecordBatch]:
    """The rows with these keys, which are sorted, some at a time; those of one key come together."""
    times = np.zeros(len(keys), np.int64)
    for _, at in _find(read(), shipment, keys):
        np.add.at(times, at, 1)
    alone: list[pa.RecordBatch] = []
    together: list[pa.RecordBatch] = []
    for rows, at in _find(read(), shipment, keys):
        is_alone = times[at] == 1
        together.append(rows.filter(pa.array(~is_alone)))
        alone.append(rows.filter(pa.array(is_alone)))
        if sum(batch.num_rows for batch in alone) >= _KEYS_AT_ONCE:
            yield from _cut(alone)
            alone = []
    yield from _cut(alone)
    if any(batch.num_rows for batch in together):
        yield pa.concat_batches(together)


def _cut(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([])
    for at in range(0, rows.num_rows, _KEYS_AT_ONCE):
        yield rows.slice(at, _KEYS_AT_ONCE)


def _find(
    batches: Iterator[pa.RecordBatch], shipment: Shipment, keys: Hashes
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
    """The rows that have one of the keys, and which of them each has."""
    for batch in batches:
        hashes = hash_rows(batch.select(list(shipment.key)))
        wanted = np.isin(hashes, keys)
        if wanted.any():
            yield batch.filter(pa.array(wanted)), np.searchsorted(keys, hashes[wanted])


def _left(ledger: Ledger, store: Delivery, commits: Sequence[Commit], found: Discrepancy) -> StoreError:
    seen = describe(found, lambda hashes: name_keys(ledger, commits, store.shipment, hashes)).removeprefix(", ")
    if len(found.shared):
        return StoreError(
            f"{store.address} has rows with ids of this run and another content, which may be of others: {seen}.",
            hint="Delete those that are wrong, then run the same command again.",
        )
    return StoreError(f"{store.address} is changed by others: {seen}.", hint="Run the same command again.")
