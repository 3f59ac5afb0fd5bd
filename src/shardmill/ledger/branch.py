"""A branch: a folder for part of a run, on a host without a shared disk. Shards are assigned, commits fetched."""

from __future__ import annotations

import json

from shardmill.ledger.record import Assignment, encode
from shardmill.store import LocalStore, Store


class Branch:
    """Keeps the shards that this folder may work on, if it is a branch."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def assign(self, assignment: Assignment) -> None:
        self._store.put("hand.json", encode(assignment))

    def assignment(self) -> Assignment | None:
        """The last assignment; None if the folder is a whole run. A branch is always on a disk."""
        if not isinstance(self._store, LocalStore):
            return None
        try:
            raw = json.loads(self._store.get("hand.json"))
        except FileNotFoundError:
            return None
        return Assignment(tuple(raw["shards"]), raw["until"])
