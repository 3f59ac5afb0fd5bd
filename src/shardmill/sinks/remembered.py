"""What a store remembers of the runs that were delivered to it, and whether another run fits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from shardmill.core.errors import StoreError, UsageError
from shardmill.sinks.base import Holding, Replacement, Shipment, TurnStep

_PREFIX = "shardmill."
_MADE_BY, _DIMS = f"{_PREFIX}made_by", f"{_PREFIX}dims"


def note(shipment: Shipment, lots: int) -> dict[str, str]:
    """What a store keeps as names and values, beside those that it has: who made its rows, and the lots of this run."""
    run = {f"{_PREFIX}{shipment.plan}": f"{shipment.generation} {lots}"}
    return {_MADE_BY: shipment.made_by, _DIMS: str(shipment.dims), **run}


def note_step(shipment: Shipment, step: TurnStep, made: Replacement) -> dict[str, str]:
    """What a store keeps after a step from one edition to another."""
    held = step.after(made.alone)
    words = [step.earlier.generation, held.lots, *([held.turns_to, held.done, held.alone] if held.turns_to else [])]
    earlier = {f"{_PREFIX}{step.earlier.plan}": " ".join(map(str, words))}
    return {**(note(shipment, step.lots) if step.lots is not None else {}), **earlier}


def read_holdings(kept: Mapping[str, str]) -> dict[str, tuple[str, Holding]]:
    """What a store has of which plans: for each the generation, and how much."""
    plans = (name.removeprefix(_PREFIX) for name in kept if name.startswith(_PREFIX) and name not in (_MADE_BY, _DIMS))
    return {plan: _read(kept, plan) for plan in plans}


def holds(step: TurnStep, kept: Mapping[str, str]) -> bool:
    """Whether a store is where a step begins."""
    return _read(kept, step.earlier.plan) == (step.earlier.generation, step.holds)


def _read(kept: Mapping[str, str], plan: str) -> tuple[str, Holding]:
    generation, lots, turns_to, done, alone = [*kept.get(f"{_PREFIX}{plan}", "").split(" "), "", "", "", ""][:5]
    return generation, Holding(int(lots or 0), turns_to, int(done or 0), int(alone or 0))


def count_lots(shipment: Shipment, kept: Mapping[str, str]) -> int:
    """The lots of a run, by what its store has kept."""
    generation, held = _read(kept, shipment.plan)
    return lots_of(held) if generation == shipment.generation else 0


def lots_of(held: Holding) -> int:
    """The lots of an edition, to which more may be added."""
    if held.lots < 0 or held.turns_to:
        raise StoreError(
            "Another process brings the store to another edition of this run.", hint="Run the same command again."
        )
    return held.lots


def generation_of(shipment: Shipment, kept: Mapping[str, str]) -> str:
    """The generation of the run whose rows a store has; "" if it has none."""
    return _read(kept, shipment.plan)[0]


def refuse_others(address: str, shipment: Shipment, kept: Mapping[str, str], lots: int | None = None) -> None:
    """Refuse a store whose rows another model made, or this run before it was started over.

    `lots` are those of the generation that it remembers, if it counts them elsewhere.
    """
    if (dims := kept.get(_DIMS, str(shipment.dims))) != str(shipment.dims):
        raise UsageError(
            f"{address} has vectors of {dims} dimensions, and the run of {shipment.dims}.",
            hint="Choose another name: it is created.",
        )
    if kept.get(_MADE_BY, shipment.made_by) != shipment.made_by:
        raise UsageError(
            f"{address} has rows that another model, or other parameters, made.",
            hint="Choose another name for these: vectors of two models cannot be compared.",
        )
    generation, held = _read(kept, shipment.plan)
    there = held.lots if lots is None else lots
    if generation not in ("", shipment.generation) and there > 0:
        raise UsageError(
            f"{address} has rows of this run from before it was started over.",
            hint="Delete what is there, or choose another name.",
        )


def refuse_columns(address: str, shipment: Shipment, found: Any, as_stored: Any = None) -> None:
    """Refuse a store whose columns are not those of the rows, `as_stored` there.

    Columns are a schema of Arrow, or types by name, as the store writes them.
    """
    wanted, there = _types(as_stored or shipment.schema), _types(found)
    if missing := [name for name in wanted if name not in there]:
        raise _unfit(address, f"it has no column {', '.join(missing)}")
    if more := [name for name in there if name not in wanted]:
        raise _unfit(address, f"it has a column {', '.join(more)}, which the result has not")
    for name, kind in wanted.items():
        if there[name] != kind:
            raise _unfit(address, f"its column {name} is {there[name]}, and that of the result {kind}")


def _types(columns: Any) -> dict[str, Any]:
    return {f.name: f.type for f in columns} if isinstance(columns, pa.Schema) else dict(columns)


def _unfit(address: str, why: str) -> UsageError:
    return UsageError(f"{address} does not fit the rows: {why}.", hint="Choose another name: it is created.")
