"""A folder that is only a branch of a run, on a host without a common disk: shards are dealt to it, commits fetched."""

from __future__ import annotations

import json

from shardmill.ledger.folder import Folder
from shardmill.ledger.records import Hand, encode
from shardmill.store import LocalStore


class Branch(Folder):
    def deal(self, hand: Hand) -> None:
        self.store.put("hand.json", encode(hand))

    def hand(self) -> Hand | None:
        """What was dealt to this folder, which is a branch then; branches are on disks."""
        if not isinstance(self.store, LocalStore):
            return None
        try:
            raw = json.loads(self.store.get("hand.json"))
        except FileNotFoundError:
            return None
        return Hand(tuple(raw["shards"]), raw["until"])
