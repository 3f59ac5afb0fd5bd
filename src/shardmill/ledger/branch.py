"""A folder that is only a branch of a run, on a host without a common disk: shards are assigned, commits fetched."""

from __future__ import annotations

import json

from shardmill.ledger.record import Assignment, encode
from shardmill.store import LocalStore, Store


class Branch:
    """Owes the shards that this folder may work on, where it is a branch."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def assign(self, assignment: Assignment) -> None:
        self._store.put("hand.json", encode(assignment))

    def assignment(self) -> Assignment | None:
        """The last assignment; None where the folder is a whole run. Branches are on disks."""
        if not isinstance(self._store, LocalStore):
            return None
        try:
            raw = json.loads(self._store.get("hand.json"))
        except FileNotFoundError:
            return None
        return Assignment(tuple(raw["shards"]), raw["until"])
