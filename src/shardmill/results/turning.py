"""Brings a store from one edition of a run to another: only rows that differ are touched, in steps, each taken once.

New and changed rows come first, in the order of the source, and then what is gone is deleted: a row may have moved to
another shard. A row is replaced or deleted only while it is as the run delivered it.

Design: docs/design/delivery.md
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.console import Bar, count
from shardmill.core.dialect import shell_command
from shardmill.core.errors import UsageError
from shardmill.core.hashing import Hashes, hash_rows
from shardmill.ledger import Editions, Ledger
from shardmill.plan import Plan
from shardmill.results.edition_rows import EditionRows, Places, find_surplus
from shardmill.sinks.base import Delivery, Holding, Replacement, Shipment, TurnStep
from shardmill.store.pruned import PRUNED

# The keys of one step: a condition that names more of them is slow to read.
_KEYS_AT_ONCE = 10_000
_NAMED = 5
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class HeldEdition:
    """An edition that a store has, wholly or in part."""

    number: int
    ledger: Ledger
    plan: Plan
    holding: Holding


def find_held(ledger: Ledger, plan: Plan, store: Delivery) -> HeldEdition | None:
    """The edition of the same run that a store has instead of this one; None if it has this one, or none."""
    there = {name: held for name, held in store.holdings().items() if held[1].lots > 0}
    generation, holding = there.get(plan.id, ("", Holding()))
    if generation == plan.generation and holding.lots and not holding.turns_to:
        return None
    editions = Editions(ledger.url)
    for number in range(editions.highest(), 0, -1) if there else ():
        found = Ledger(editions.open(number))
        own = found.find_plan()
        if own is not None and (held := there.get(own.id)) is not None and held[0] == own.generation:
            return HeldEdition(number, found, own, held[1])
    return None


def find_edition(ledger: Ledger, plan: str) -> HeldEdition:
    """The edition of the same run with this plan, of which a store has nothing yet."""
    editions = Editions(ledger.url)
    for number in range(editions.highest(), 0, -1):
        found = Ledger(editions.open(number))
        if (own := found.find_plan()) is not None and own.id == plan:
            return HeldEdition(number, found, own, Holding())
    raise UsageError(f"{ledger.url} has no edition with the plan {plan}.", hint="Load it into a new table.")


def refuse_unfit(held: HeldEdition, store: Delivery) -> None:
    """Refuse what cannot be brought up to another edition."""
    said, hint = "", f"Load it into a new table: {shell_command('load', '--from', 'RUN', '--to', 'ADDRESS')}"
    if not store.shipment.key:
        said = "nothing identifies its rows, so they cannot be brought up to another. It was run without --id"
    elif held.ledger.store.head(PRUNED) is not None:
        said = "it was pruned, so what has changed since cannot be told"
    if said:
        raise UsageError(f"{store.address} has edition {held.number} of this run: {said}.", hint=hint)


class EditionTurn:
    """The steps from one edition to another, which are the same for everybody who takes them."""

    def __init__(self, earlier: EditionRows, later: EditionRows, key: Sequence[str]) -> None:
        self._earlier, self._later, self._key = earlier, later, list(key)
        before, self._after = earlier.hashes(), later.hashes()
        self.come, self.left = find_surplus(self._after, before), find_surplus(before, self._after)
        self._after.sort()
        self._before = np.sort(before)
        keys = self._hash_keys(earlier, self.left)
        order = np.argsort(keys, kind="stable")
        self._left_keys, self._left_rows = keys[order], before[self.left][order]
        self.gone = self.left[~np.isin(keys, self._hash_keys(later, self.come))]

    def __len__(self) -> int:
        return len(self.come) + len(self.gone)

    def read(self, done: int, schema: pa.Schema) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The keys of the next step, and the rows that it adds."""
        if done < len(self.come):
            rows = _read(self._later, self.come[done : done + _KEYS_AT_ONCE], schema)
            return rows.select(self._key), rows
        keys = pa.schema([schema.field(name) for name in self._key])
        first = done - len(self.come)
        gone = _read(self._earlier, self.gone[first : first + _KEYS_AT_ONCE], keys)
        return gone, pa.RecordBatch.from_pylist([], schema=schema)

    def decide(
        self, keys: pa.RecordBatch, rows: pa.RecordBatch, alone: list[pa.RecordBatch], found: Sequence[pa.RecordBatch]
    ) -> Replacement:
        """What a step does with the rows that the store has with its keys; the keys left are put into `alone`."""
        stored = pa.concat_batches(found) if found else rows.slice(0, 0)
        contents, coming = self._earlier.hash(stored), self._later.hash(rows)
        is_own, is_repeated = _are_in(contents, self._after), ~_are_in(contents, self._before)
        of_stored, of_rows = _by_key(stored.select(self._key)), _by_key(rows.select(self._key))
        touched, leaving, kept, added, left = (list[int]() for _ in range(5))
        for key, at in _by_key(keys).items():
            mine, expected = of_stored.get(key, _NONE), self._expected(key)
            rest = mine[find_surplus(contents[mine], expected)]
            if len(expected) and not is_own[rest].all():
                left.append(int(at[0]))
                continue
            new = of_rows.get(key, _NONE)
            # What somebody has added already, as a repair does, is not added again.
            new = new[find_surplus(coming[new], contents[rest[is_repeated[rest]]])]
            if len(new) or len(rest) < len(mine):
                (touched if len(new) or len(rest) else leaving).append(int(at[0]))
                kept += rest.tolist()
                added += new.tolist()
        alone[:] = [_take(keys, left)]
        rows = pa.concat_batches([_take(stored, kept), _take(rows, added)])
        return Replacement(_take(keys, [*touched, *leaving]), rows, len(left), len(leaving))

    def describe(self, number: int, plan: Plan, alone: int, names: Sequence[str] = ()) -> str:
        """What was done to come from the edition with this number to that of a plan; `names` are some of those left."""
        said = f"edition {number} became edition {max(1, plan.work.edition)}: "
        said += f"{count(len(self.come), 'row')} new or changed, {len(self.gone):,} gone"
        if not alone:
            return said
        named = f" ({', '.join(names[:_NAMED])}{', …' if alone > _NAMED else ''})" if names else ""
        return f"{said}; changed there since, and left alone: {alone:,}{named}"

    def _expected(self, key: int) -> Hashes:
        """The rows with a key that are to go, as they were delivered."""
        start = np.searchsorted(self._left_keys, np.uint64(key), "left")
        return self._left_rows[start : np.searchsorted(self._left_keys, np.uint64(key), "right")]

    def _hash_keys(self, edition: EditionRows, places: Places) -> Hashes:
        found = [hash_rows(batch) for batch in edition.read(places, self._key)]
        return np.concatenate([np.zeros(0, np.uint64), *found])


@dataclass
class Turning:
    """One process that brings a store from the edition that it has to another one."""

    held: HeldEdition
    # The shards of which the store has the rows.
    shards: int
    ledger: Ledger
    plan: Plan
    store: Delivery
    # How many lots the store has at the end.
    lots: int
    stop: threading.Event

    def run(self, *, quiet: bool = True) -> list[str]:
        """Take the steps that are left; returns what was done, unless another process did the last step."""
        shipment, number = self.store.shipment, self.held.number
        earlier = changed(shipment, plan=self.held.plan.id, generation=self.held.plan.generation)
        turn, names = self._compare(), list[str]()
        holding = self.held.holding
        with Bar("delivering", quiet=quiet) as bar:
            while not self.stop.is_set():
                bar.at(holding.done / (len(turn) + 1), f"{holding.done:,} of {len(turn):,} rows that differ")
                alone: list[pa.RecordBatch] = []
                step = self._step(turn, earlier, holding, alone)
                if self.store.turn(step):
                    if step.lots is not None:
                        return [turn.describe(number, self.plan, holding.alone, names)]
                    names += [_name(row) for row in alone[0].slice(0, _NAMED).to_pylist()]
                    holding = step.after(alone[0].num_rows)
                    continue
                now = find_held(self.ledger, self.plan, self.store)
                if now is None or now.number != number or now.holding.lots != holding.lots:
                    return []
                if now.holding.turns_to not in ("", self.plan.id):
                    return []
                holding = now.holding
        return []

    def _compare(self) -> EditionTurn:
        """Find what differs, by all rows that the store has of the earlier edition."""
        commits = self.held.ledger.commits.read_complete(self.held.plan)
        earlier = EditionRows(self.held.ledger, self.held.plan, commits[: self.shards])
        later = EditionRows(self.ledger, self.plan, self.ledger.commits.read_complete(self.plan))
        return EditionTurn(earlier, later, self.store.shipment.key)

    def _step(self, turn: EditionTurn, earlier: Shipment, holding: Holding, alone: list[pa.RecordBatch]) -> TurnStep:
        schema = self.store.shipment.schema
        keys, rows = turn.read(holding.done, schema)
        is_last = holding.done == len(turn)
        decide = partial(turn.decide, keys, rows, alone)
        return TurnStep(earlier, holding, self.plan.id, keys, decide, self.lots if is_last else None)


def _name(key: dict[str, Any]) -> str:
    return "/".join(map(str, key.values()))


def _by_key(keys: pa.RecordBatch) -> dict[int, Places]:
    """The places of each key, by its hash."""
    hashes = hash_rows(keys)
    order = np.argsort(hashes, kind="stable")
    found, starts = np.unique(hashes[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True)) if len(found) else {}


def _are_in(values: Hashes, places: Hashes) -> NDArray[np.bool_]:
    """Which of the values are among sorted ones."""
    return np.asarray(np.searchsorted(places, values, "right") > np.searchsorted(places, values))


def _take(rows: pa.RecordBatch, places: Sequence[int]) -> pa.RecordBatch:
    return rows.take(pa.array(places, pa.int64()))


def _read(edition: EditionRows, places: Places, schema: pa.Schema) -> pa.RecordBatch:
    batches = [batch.cast(schema) for batch in edition.read(places, schema.names)]
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=schema)
