"""A folder that is only a branch of a run, on a host without a common disk: shards are dealt to it, commits fetched."""

from __future__ import annotations

import json

from shardmill.ledger.folder import Folder
from shardmill.ledger.records import Assignment, encode
from shardmill.store import LocalStore


class Branch(Folder):
    def assign(self, hand: Assignment) -> None:
        self.store.put("hand.json", encode(hand))

    def assignment(self) -> Assignment | None:
        """What was dealt to this folder, which is a branch then; branches are on disks."""
        if not isinstance(self.store, LocalStore):
            return None
        try:
            raw = json.loads(self.store.get("hand.json"))
        except FileNotFoundError:
            return None
        return Assignment(tuple(raw["shards"]), raw["until"])
