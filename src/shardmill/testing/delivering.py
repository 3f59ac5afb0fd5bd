"""What a store owes that rows are delivered to: every lot once, wholly or not at all, whoever commits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.errors import ShardmillError
from shardmill.sinks.base import Delivery, Holding, Lot, Replacement, Shipment, TurnStep
from shardmill.testing.writing import Checks

_DIMS = 3
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("share", pa.float64()),
        pa.field("good", pa.bool_()),
        pa.field("vector", pa.list_(pa.float32(), _DIMS)),
    ]
)


def check_sink(make: Callable[[Shipment], Delivery]) -> int:
    """Check that a store takes every lot exactly once. `make` opens the same store again and again.

    A sink that workers write to themselves is checked by `check_writer`.
    """
    store = TriedStore(make)
    for check in (
        _takes_lots_once,
        _keeps_its_order,
        _leaves_nothing_half,
        _tells_runs_apart,
        _repairs,
        _deletes,
        _turns,
    ):
        check(store)
    return store.checks.made


class TriedStore:
    """The store under test, opened anew for each thing that is asked of it, as other processes do."""

    def __init__(self, make: Callable[[Shipment], Delivery]) -> None:
        self._make, self.checks = make, Checks()
        self.shipment = Shipment(
            plan="a" * 16, generation="0" * 8, schema=SCHEMA, key=("id",), vector="vector", made_by="c" * 16
        )

    def open(self, **other: Any) -> Delivery:
        return self._make(replace(self.shipment, **other))

    def that(self, holds: bool, what: str) -> None:
        self.checks.that(holds, what)

    def prepare(self, **other: Any) -> None:
        store = self.open(**other)
        store.prepare()
        store.close()

    def count(self, **other: Any) -> int:
        store = self.open(**other)
        found = store.count()
        store.close()
        return found

    def rows(self) -> list[dict[str, Any]]:
        store = self.open()
        found = [row for batch in store.scan() for row in batch.to_pylist()]
        store.close()
        return sorted(found, key=lambda row: row["id"])

    def put(self, first: int, *lots: Lot, **other: Any) -> bool:
        store = self.open(**other)
        try:
            return store.commit(first, [replace(lot, staged=store.stage(lot)) for lot in lots])
        finally:
            store.close()

    def is_same(self, *numbers: int) -> bool:
        """Whether it has the rows of these numbers, each once."""
        wanted = sorted((row for n in numbers for row in make_rows(n, 1).to_pylist()), key=lambda row: row["id"])
        found = self.rows()
        if self.open().exact:
            return found == wanted
        bare = [[{**row, "vector": None} for row in rows] for rows in (found, wanted)]
        near = all(_is_near(a["vector"], b["vector"]) for a, b in zip(found, wanted, strict=False))
        return bare[0] == bare[1] and near


def _is_near(found: list[float], wanted: list[float]) -> bool:
    a, b = np.array(found), np.array(wanted)
    return bool(np.allclose(a / np.linalg.norm(a), b / np.linalg.norm(b), atol=1e-5))


def _takes_lots_once(store: TriedStore) -> None:
    store.prepare()
    store.prepare()
    counts = store.open().counts
    store.that(store.count() == 0 and store.rows() == [], "a new store has nothing, and may be prepared twice")
    store.put(0, make_lot(0, 0, 5))
    store.that(store.is_same(*range(5)), "rows come back as they went, nulls and floats too")
    store.that(not counts or store.count() == 1, "a lot that was committed is known to the next process")
    again = store.put(0, make_lot(0, 0, 5))
    store.that(not counts or not again, "a lot is not committed by somebody who believes that it is not there")
    store.that(store.is_same(*range(5)), "and its rows are there once")


def _keeps_its_order(store: TriedStore) -> None:
    paused, other = store.open(), store.open()
    lot = make_lot(1, 5, 3)
    waiting = replace(lot, staged=paused.stage(lot))
    first = paused.count()
    store.that(
        other.commit(first, [replace(lot, staged=other.stage(lot))]), "another process takes a paused one's place"
    )
    # A database file may be open in one process at a time.
    other.close()
    woken = paused.commit(first, [waiting])
    paused.close()
    store.that(not store.open().counts or not woken, "the paused one is refused when it wakes")
    store.that(store.is_same(*range(8)), "and no row is there twice")
    if store.open().lots_at_once > 1:
        store.that(store.put(2, make_lot(2, 8, 2), make_lot(3, 10, 0)), "several lots are committed at once")
    else:
        store.put(2, make_lot(2, 8, 2))
        store.put(3, make_lot(3, 10, 0))
    store.that(not store.open().counts or store.count() == 4, "a lot without rows counts")
    store.that(store.is_same(*range(10)), "and every other one is there")


def _leaves_nothing_half(store: TriedStore) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield make_rows(20, 3)
        raise RuntimeError("killed")

    try:
        store.put(4, Lot(4, range(4, 5), "broken", broken))
    except RuntimeError:
        store.that(True, "")
    else:
        store.that(False, "an error in the middle of a lot is not swallowed")
    counts = store.open().counts
    store.that(not counts or (store.count() == 4 and store.is_same(*range(10))), "and leaves nothing of the lot")
    store.put(4, make_lot(4, 20, 3))
    store.that(store.is_same(*range(10), 20, 21, 22), "which is taken later")
    last = store.open()
    last.finish([])
    last.close()
    store.that(store.is_same(*range(10), 20, 21, 22), "what completes the store leaves its rows")


def _tells_runs_apart(store: TriedStore) -> None:
    store.prepare(plan="b" * 16)
    store.that(not store.open().counts or store.count(plan="b" * 16) == 0, "another run has no lots")
    store.put(0, make_lot(0, 30, 2), plan="b" * 16)
    store.that(store.is_same(*range(10), 20, 21, 22, 30, 31), "its rows come beside those of the first")
    store.that(not store.open().counts or store.count() == 5, "whose lots stay as they are")
    fewer = pa.schema([*list(SCHEMA)[:-1], pa.field("vector", pa.list_(pa.float32(), _DIMS + 1))])
    for other, why in (
        ({"schema": fewer}, "other dimensions"),
        ({"made_by": "d" * 16, "plan": "d" * 16}, "another model"),
        *([({"generation": "1" * 8}, "a run that was started over")] if store.open().counts else []),
    ):
        try:
            store.prepare(**other)
        except ShardmillError as error:
            store.that(bool(error.hint), f"{why}: the refusal says what to do")
        else:
            store.that(False, f"{why}: refused")


def _repairs(store: TriedStore) -> None:
    """What a store has that can; one without `replace` refuses, and one that does not count gets every row anew."""
    opened = store.open()
    can = opened.counts and type(opened).replace is not Delivery.replace
    if can:
        others = make_rows(3, 4).set_column(1, "number", pa.array([7] * 4))
        store.that(
            not opened.replace(4, others), "rows are not replaced by somebody who believes that lots are missing"
        )
        store.that(store.is_same(*range(10), 20, 21, 22, 30, 31), "which changes nothing")
        store.that(opened.replace(5, others), "rows are replaced by others with their keys")
        more = [row["number"] for row in store.rows()].count(7)
        store.that(more == 4 and len(store.rows()) == 15, "each once, and no others")
        opened.replace(5, pa.concat_batches([make_rows(3, 4), make_rows(40, 1)]))
        store.that(store.is_same(*range(10), 20, 21, 22, 30, 31, 40), "rows that are missing are added")
        opened.replace(5, make_rows(40, 1))
        store.that(store.is_same(*range(10), 20, 21, 22, 30, 31, 40), "and are there once, however often that is done")
        store.that(store.count() == 5, "its lots stay as they are")
        opened.delete(make_rows(40, 1).select(["id"]))
    opened.close()


def _deletes(store: TriedStore) -> None:
    opened = store.open()
    opened.delete(make_rows(3, 2).select(["id"]))
    opened.delete(make_rows(90, 1).select(["id"]))
    opened.close()
    store.that(store.is_same(0, 1, 2, *range(5, 10), 20, 21, 22, 30, 31), "rows are deleted by their keys, no others")


def _turns(store: TriedStore) -> None:
    """What a store does that can be brought from one edition of a run to another."""
    new = "e" * 16
    opened = store.open(plan=new)
    if not opened.counts or type(opened).turn is Delivery.turn:
        return
    opened.prepare()
    keys = pa.concat_batches([make_rows(5, 2), make_rows(50, 1)]).select(["id"])
    made = list[str]()

    def decide(found: Sequence[pa.RecordBatch]) -> Replacement:
        made.extend(id for batch in found for id in batch.column("id").to_pylist())
        return Replacement(keys, make_rows(50, 1), 1)

    def holds() -> tuple[str, Holding]:
        return opened.holdings()[store.shipment.plan]

    step = TurnStep(store.shipment, Holding(5), new, keys, decide)
    store.that(holds() == (store.shipment.generation, Holding(5)), "a store tells what it has of another edition")
    store.that(not opened.turn(replace(step, holds=Holding(4))), "a step is not taken from where the store is not")
    store.that(opened.turn(step), "a step is taken")
    store.that(sorted(made) == sorted(keys.column("id").to_pylist()[:2]), "it gets the rows with its keys")
    left = (0, 1, 2, 7, 8, 9, 20, 21, 22, 30, 31, 50)
    store.that(store.is_same(*left), "and deletes and adds those that it should")
    store.that(holds()[1] == Holding(5, new, 3, 1), "the next process knows")
    store.that(not opened.turn(step), "a step is not taken twice")
    none = Replacement(keys.slice(0, 0), make_rows(0, 0))
    last = TurnStep(store.shipment, Holding(5, new, 3, 1), new, none.keys, lambda found: none, lots=3)
    store.that(opened.turn(last) and opened.count() == 3, "after the last step it has the lots of the new edition")
    opened.close()
    store.that(store.is_same(*left) and holds()[1].lots < 0, "and the other one no more")
    opened.close()
    try:
        store.count()
    except ShardmillError:
        store.that(True, "")
    else:
        store.that(False, "to which nobody adds")


def make_lot(number: int, start: int, count: int) -> Lot:
    rows = make_rows(start, count)
    return Lot(number, range(number, number + 1), f"digest {number}", lambda: iter([rows] if count else []))


def make_rows(start: int, count: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    columns: list[list[Any]] = [
        [f'"{n}" é\'?%s\n' for n in numbers],
        [None if n == 1 else n * 2**40 for n in numbers],
        [n / 3 for n in numbers],
        [None if n == 2 else n % 2 == 0 for n in numbers],
        [[float(np.float32(n / 7)), -0.0, 1e-30] for n in numbers],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
