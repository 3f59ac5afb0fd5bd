"""Deletes old editions of a run."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from shardmill.core.dialect import shell_command
from shardmill.core.errors import CorruptState
from shardmill.core.pool import in_order
from shardmill.ledger import MIGRATE, Edition, Editions, Ledger
from shardmill.results.holders import find_holders
from shardmill.sinks.parquet import read_borrowed
from shardmill.store.recipes import PartName


@dataclass(frozen=True, slots=True)
class PrunedEditions:
    """Which editions were deleted, which is read, and which stayed for the stores that have them: their addresses."""

    run: str
    edition: int
    pruned: list[int]
    held: dict[int, list[str]] = field(default_factory=dict)

    def describe_held(self) -> list[str]:
        """A line for each edition that stayed for a store."""
        load = shell_command("load", "--from", self.run, "--to")
        return [
            f"Edition {number} stays: {', '.join(addresses)} has it, and is brought up by its rows alone: "
            f"{load} {addresses[0]} (or delete it all the same: --even-delivered)"
            for number, addresses in self.held.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def prune(place: str | os.PathLike[str], keep: int, *, even_delivered: bool = False) -> PrunedEditions:
    """Delete all editions but the newest `keep`, and those that were replaced within the hour.

    One that a store has that the run was delivered to stays, too: what differs between it and a later one, its rows
    alone tell. With `even_delivered` it goes, and such a store cannot be brought up any more.
    One that is being made stays, with the edition that it is made from. A migration is being made until it is complete,
    or until somebody stops it.
    """
    # Refuses a folder that holds no run.
    Ledger(place).plan()
    editions = Editions(place)
    old = editions.prunable(keep, _find_held(editions))
    held = {} if even_delivered else find_holders(editions, old)
    going = editions.retire([number for number in old if number not in held])
    # After it is decided which editions go: what those that stay need is known only then.
    needed = _find_needed(editions, going)
    pruned = [number for number in going if editions.prune(number, needed[number])]
    return PrunedEditions(editions.run, editions.current(), pruned, held)


def _find_needed(editions: Editions, going: list[int]) -> defaultdict[int, set[str]]:
    """The parts of editions that are going in which editions that stay have rows."""
    needed: defaultdict[int, set[str]] = defaultdict(set)
    for edition in editions.all() if going else ():
        if edition.number == 1 or edition.number in going:
            continue
        for part in _find_borrowed(editions, edition.number):
            needed[part.edition].add(part.key)
    return needed


def _find_borrowed(editions: Editions, number: int) -> set[PartName]:
    """The parts of others that an edition has rows of."""
    ledger = Ledger(editions.open(number))
    commits = ledger.commits.read()
    try:
        return {part for parts in in_order(partial(read_borrowed, ledger.store), commits.values()) for part in parts}
    except CorruptState:
        # One that is begun again meanwhile loses the parts that it had.
        if Ledger(editions.open(number)).commits.read() == commits:
            raise
        return _find_borrowed(editions, number)


def _find_held(editions: Editions) -> set[int]:
    """The editions that are being made, and those that they are made from."""
    held: set[int] = set()
    for edition in editions.all():
        if edition.was_read or edition.pruned:
            continue
        if edition.base == editions.current() or (edition.kind == MIGRATE and _is_wanted(editions, edition)):
            held |= {edition.number, edition.base}
    return held


def _is_wanted(editions: Editions, edition: Edition) -> bool:
    return not edition.complete and Ledger(editions.open(edition.number)).state.is_wanted()
