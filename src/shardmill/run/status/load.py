"""The progress of a load, from the ledger in the database: the counts in heartbeats may be lost with a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardmill.core.errors import ShardmillError
from shardmill.plan import Plan
from shardmill.plugins import find_by_scheme

if TYPE_CHECKING:
    from shardmill.postgres.batches import Loader

_SUMS = ("rows", "inserted", "updated", "errors", "rows_per_s")


@dataclass(frozen=True, slots=True)
class TableLoad:
    """The progress of a load; `trouble` says why the database cannot be read."""

    table: str
    rows: int = 0
    inserted: int = 0
    updated: int = 0
    errors: int = 0
    rows_per_s: float = 0.0
    loaders: list[Loader] = field(default_factory=list)
    trouble: str = ""


def read_load(plan: Plan) -> TableLoad | None:
    """The load of a run; None if its result does not go into a table, or the table does not tell."""
    if (to := plan.work.to) is None:
        return None
    try:
        sink = find_by_scheme("sinks", to.url)
        if sink is None or not sink.progress:
            return None
        found = sink.part("progress")(to.url, to.table, plan.id)
    except ShardmillError as error:
        return TableLoad(to.table, trouble=error.message)
    return TableLoad(
        to.table, **{name: sum(getattr(loader, name) for loader in found) for name in _SUMS}, loaders=found
    )
