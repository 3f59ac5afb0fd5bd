"""Finds the store that an address names."""

from __future__ import annotations

from typing import cast

import pyarrow as pa

from shardmill.core.errors import SpecError
from shardmill.plan import Plan
from shardmill.plugins import SinkKind, find, names
from shardmill.sinks.base import Delivery


def find_sink(address: str) -> SinkKind:
    """The kind of store whose addresses begin like this one."""
    kinds: list[SinkKind] = [find("sinks", name) for name in names("sinks")]
    kind = next((kind for kind in kinds if address.startswith(kind.schemes)), None)
    if kind is None:
        known = ", ".join(scheme for kind in kinds for scheme in kind.schemes)
        raise SpecError(
            f"No sink takes {address!r}.",
            hint=f"There are: {known}." if known else "Install a package that brings one. See: shardmill plugins",
        )
    return kind


def open_delivery(address: str, plan: Plan, schema: pa.Schema) -> Delivery:
    """The store, for the rows of a run."""
    return cast(Delivery, find_sink(address).part("delivery")(address, f"{plan.id}.{plan.generation}", schema))
