"""Finds the sink that an address names."""

from __future__ import annotations

import re
from typing import cast

from shardmill.core.errors import SpecError, nearest
from shardmill.core.passwords import withhold
from shardmill.plan.spec import Work
from shardmill.plugins import SinkKind, find, find_by_scheme, schemes
from shardmill.sinks.base import Delivery, ResultTable, Shipment

_GONE = re.compile(r"(?P<place>.*)\?gone=(?P<column>[^?#&=/]+)", re.DOTALL)


def split_gone(address: str) -> tuple[str, str]:
    """The address without the column in which rows that are gone get a mark, and that column; "" if they are deleted.

    >>> split_gone("postgresql://ann@db/shop?sslmode=require#reviews?gone=deleted_at")
    ('postgresql://ann@db/shop?sslmode=require#reviews', 'deleted_at')
    """
    found = _GONE.fullmatch(address)
    return (found["place"], found["column"]) if found is not None else (address, "")


def find_delivery(address: str) -> SinkKind:
    """The sink that the committed parts of a run are delivered to (--into)."""
    kind = _find(address)
    place, column = split_gone(address)
    if column and not kind.marks_gone:
        raise SpecError(
            f"The sink {kind.name!r} cannot mark rows that are gone ({column}).",
            hint=f"It deletes them: {withhold(place)}. Tables of PostgreSQL, DuckDB and SQLite can have marks.",
        )
    if not kind.delivery:
        raise SpecError(
            f"Workers write to the sink {kind.name!r} themselves: nothing is delivered to it.",
            hint=f"Write: shardmill load SOURCE --to {withhold(address)} --table NAME",
        )
    return kind


def open_delivery(address: str, shipment: Shipment) -> Delivery:
    """The store, for the rows of a run."""
    return cast(Delivery, find_delivery(address).part("delivery")(address, shipment))


def find_writer(work: Work) -> SinkKind:
    """The sink that workers write to: the parts of the run folder, or what --to names."""
    if work.to is None:
        return cast(SinkKind, find("sinks", "parts"))
    kind = _find(work.to.url)
    if not kind.writer:
        raise SpecError(
            f"Workers do not write to the sink {kind.name!r} themselves.",
            hint=f"Have the finished rows delivered to it: --into {work.to.url}",
        )
    return kind


def find_table(work: Work) -> ResultTable:
    """The module that prepares and reads back what --to names."""
    return cast(ResultTable, find_writer(work).part("table"))


def _find(address: str) -> SinkKind:
    """The sink whose addresses begin like this one."""
    kind: SinkKind | None = find_by_scheme("sinks", address)
    if kind is None:
        shown = withhold(address)
        raise SpecError(
            f"No sink takes {shown!r}.", hint=f"{nearest(shown, schemes('sinks'))} See: shardmill plugins --all"
        )
    return kind
