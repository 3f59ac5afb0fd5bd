"""What a host without the run folder is told of a study: the trials that have ended, and what its own trials try."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.verbs.tune.history import to_send
from shardmill.verbs.tune.start import TrialStarts
from shardmill.verbs.tune.study import read_settings


class TrialBriefing:
    """The trials of one host. What they try is settled here, where all results are, before the host begins them."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self._starts = TrialStarts(ledger, read_settings(ledger, plan))
        self._sent: set[int] = set()

    def brief(self, shards: Iterable[int]) -> dict[str, Any] | None:
        """What goes with the shards that a host is assigned; None if it has all of it."""
        new = sorted(set(shards) - self._sent)
        if not new:
            return None
        # The time of a study is counted from its first trial.
        settled = {shard: self._starts.settle(shard) for shard in (0, *new)}
        ended = to_send(self._starts.before(max(new)))
        return {"ended": ended, "starts": {shard: asdict(start) for shard, start in settled.items() if start}}

    def arrived(self, shards: Iterable[int]) -> None:
        """Remember what the host has; after a lost connection it gets all again."""
        self._sent = {*shards}
