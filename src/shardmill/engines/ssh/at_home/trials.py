"""What a host gets of a study with its hand: the trials that have ended, and what its own trials try."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.tuning.history import to_send
from shardmill.tuning.start import TrialStarts
from shardmill.tuning.study import is_study, read_settings


class TrialsToSend:
    """The trials of one host. What they try is settled here, where all results are, before the host begins them."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self._starts = TrialStarts(ledger, read_settings(ledger, plan)) if is_study(plan) else None
        self._sent: set[int] = set()

    def with_hand(self, hand: Iterable[int]) -> dict[str, Any] | None:
        """What goes with a hand; None if the run is no study, or the host has all of it."""
        new = sorted(set(hand) - self._sent)
        if self._starts is None or not new:
            return None
        # The time of a study is counted from its first trial.
        settled = {shard: self._starts.settle(shard) for shard in (0, *new)}
        ended = to_send(self._starts.before(max(new)))
        return {"ended": ended, "starts": {shard: asdict(start) for shard, start in settled.items() if start}}

    def arrived(self, hand: Iterable[int]) -> None:
        """Remember what the host has; after a lost connection it gets all again."""
        self._sent = {*hand}
