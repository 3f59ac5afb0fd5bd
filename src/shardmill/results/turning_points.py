"""Brings a vector database from one edition of a run to another: rows that differ are sent, what is gone is deleted.

Such a store has no notes: what it may have, the records of the lots in each edition say. Sending a row again replaces
its point, so there are no steps, and after a kill the lots that are left are sent.

Design: docs/design/delivery.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from shardmill.ledger import DONE, Commit, Editions, Ledger, Step
from shardmill.plan import Plan
from shardmill.results.edition_rows import EditionRows
from shardmill.results.turning import EditionTurn, HeldEdition
from shardmill.sinks.base import Holding
from shardmill.sinks.points.base import PointDelivery

_ROWS_AT_ONCE = 10_000


def find_delivered(ledger: Ledger, plan: Plan, address: str) -> list[HeldEdition]:
    """The other editions of the run whose rows the store may have: the newest, and those that were to become it."""
    editions, found = Editions(ledger.url), dict[int, HeldEdition]()
    waiting = list(range(editions.highest(), 0, -1))
    while waiting:
        number = waiting.pop(0)
        other = Ledger(editions.open(number))
        own = other.find_plan()
        if own is None or own.id == plan.id or number in found:
            continue
        cut = other.lots.find(f"cut:{address}")
        if cut is not None and cut.state == DONE:
            found[number] = HeldEdition(number, other, own, Holding(_count_done(other, cut, address)))
            waiting = [*(waiting if len(found) > 1 else []), *cut.result.get("from", [])]
    return list(found.values())


def _count_done(ledger: Ledger, cut: Step, address: str) -> int:
    """How many of the lots were delivered; 0 if one was not, or if others were to become them."""
    lots = [ledger.lots.find(f"lot:{address}#{number}") for number in range(len(cut.result["stops"]))]
    is_whole = all(lot is not None and lot.state == DONE for lot in lots) and not cut.result.get("from")
    return len(lots) if is_whole else 0


@dataclass
class PointTurning:
    """What a run differs in from the editions of it that a vector database may have."""

    held: Sequence[HeldEdition]
    ledger: Ledger
    plan: Plan
    key: Sequence[str]
    _later: EditionRows = field(init=False)

    def __post_init__(self) -> None:
        self._later = EditionRows(self.ledger, self.plan, self.ledger.commits.read_complete(self.plan))

    @property
    def is_partial(self) -> bool:
        """Whether all rows of one edition are there, so that those are enough which differ."""
        return len(self.held) == 1 and self.held[0].holding.lots > 0

    def read(self, commits: Sequence[Commit], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of these shards that differ."""
        first = sum(commit.rows_in_part for commit in self.ledger.commits.read_complete(self.plan)[: commits[0].shard])
        places = self._turns[0].come
        mine = (places >= first) & (places < first + sum(commit.rows_in_part for commit in commits))
        for batch in self._later.read(places[mine], schema.names):
            yield batch.cast(schema)

    def delete_gone(self, store: PointDelivery) -> list[str]:
        """Delete the points of rows that the run has no more, but for those that were changed since; says what was."""
        return [self._delete(store, *each) for each in zip(self.held, self._turns, strict=True)]

    def forget(self, address: str) -> None:
        """The store has the other editions no more."""
        for held in self.held:
            held.ledger.lots.forget(f"cut:{address}")
            for number in range(max(1, held.holding.lots)):
                held.ledger.lots.forget(f"lot:{address}#{number}")

    @cached_property
    def _turns(self) -> list[EditionTurn]:
        return [EditionTurn(_rows_of(held), self._later, self.key) for held in self.held]

    def _delete(self, store: PointDelivery, held: HeldEdition, turn: EditionTurn) -> str:
        alone, earlier, names = 0, _rows_of(held), store.shipment.schema.names
        for at in range(0, len(turn.gone), _ROWS_AT_ONCE):
            for batch in earlier.read(turn.gone[at : at + _ROWS_AT_ONCE], names):
                alone += store.remove_unchanged(batch.cast(store.shipment.schema))
        return turn.describe(held.number, self.plan, alone)


def _rows_of(held: HeldEdition) -> EditionRows:
    return EditionRows(held.ledger, held.plan, held.ledger.commits.read_complete(held.plan))
