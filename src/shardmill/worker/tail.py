"""When a slow worker leaves the last shards of a run to faster ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from shardmill.ledger import Ledger, is_vanished
from shardmill.plan import Plan

# The fastest worker is never slower than the mean of the others, so at least one always claims.
_MUCH_SLOWER = 3
# Each record is one request to the store, so a sample stands for all workers.
_ASKED = 16


def live_peers(ledger: Ledger, me: str, late_s: float) -> tuple[list[dict[str, Any]], float]:
    """Recent heartbeats of a sample of other live workers, and how many workers each one stands for."""
    beats, crowd = ledger.workers.sample(_ASKED)
    return [
        beat
        for beat in beats
        if beat["id"] != me
        and beat["state"] in ("starting", "loading", "working")
        and ledger.clock() - beat["at"] < late_s
        and not is_vanished(beat)
    ], crowd


def is_left_to_others(
    ledger: Ledger,
    plan: Plan,
    kind: str,
    pace: float,
    held: Mapping[int, int],
    peers: Sequence[Mapping[str, Any]],
    crowd: float = 1.0,
) -> tuple[bool, float]:
    """Whether a worker should not claim: faster workers would finish everything before it finished another shard.

    `pace` is its own speed in bytes per second, 0 while unknown; `held` has the bytes done of each shard it works on.
    A CPU worker beside GPUs claims no second shard until both speeds are known. Also returns the seconds that the
    others need for all that is left, or 0 if not estimated.
    """
    speeds = [float(peer["bytes_per_s"]) for peer in peers if peer["bytes_per_s"]]
    if not pace or not speeds:
        return bool(held) and kind == "cpu" and any(peer.get("kind") == "cuda" for peer in peers), 0.0
    if pace * _MUCH_SLOWER >= fmean(speeds):
        return False, 0.0
    weights = plan.weights
    left = [weights[i] for i in ledger.commits.list_left(len(plan.shards)) if i not in held]
    if not left:
        return False, 0.0
    rest_s = sum(left) / (sum(speeds) * crowd)
    return remaining_s(plan, held, pace) + fmean(left) / pace > rest_s, rest_s


def remaining_s(plan: Plan, held: Mapping[int, int], pace: float) -> float:
    """Seconds that a worker of this pace still needs for the shards it holds."""
    return sum(max(0, plan.shards[shard].weight_bytes - run) for shard, run in held.items()) / pace
