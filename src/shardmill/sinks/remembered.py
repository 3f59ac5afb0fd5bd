"""What a store remembers of the runs that were delivered to it, and whether another run fits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from shardmill.core.errors import UsageError
from shardmill.sinks.base import Shipment

_PREFIX = "shardmill."
_MADE_BY, _DIMS = f"{_PREFIX}made_by", f"{_PREFIX}dims"


def note(shipment: Shipment, lots: int) -> dict[str, str]:
    """What a store keeps as names and values, beside those that it has: who made its rows, and the lots of this run."""
    run = {f"{_PREFIX}{shipment.plan}": f"{shipment.generation} {lots}"}
    return {_MADE_BY: shipment.made_by, _DIMS: str(shipment.dims), **run}


def count_lots(shipment: Shipment, kept: Mapping[str, str]) -> int:
    """The lots of a run, by what its store has kept."""
    generation, _, lots = kept.get(f"{_PREFIX}{shipment.plan}", "").partition(" ")
    return int(lots or 0) if generation == shipment.generation else 0


def generation_of(shipment: Shipment, kept: Mapping[str, str]) -> str:
    """The generation of the run whose rows a store has; "" if it has none."""
    return kept.get(f"{_PREFIX}{shipment.plan}", "").partition(" ")[0]


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
    earlier = replace(shipment, generation=generation_of(shipment, kept))
    there = count_lots(earlier, kept) if lots is None else lots
    if earlier.generation not in ("", shipment.generation) and there:
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
