"""When a slow worker leaves the last shards of a run to faster ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from shardmill.ledger import Ledger, process_alive
from shardmill.plan import Plan

# The fastest is never slower than the mean of the others, so there is always one who claims.
_MUCH_SLOWER = 3
# Each record is a request to the store. Some stand for a thousand.
_ASKED = 16


def live_peers(ledger: Ledger, me: str, late_s: float) -> tuple[list[dict[str, Any]], float]:
    """The last beats of some other workers that seem to be at the run, and how many each of them stands for."""
    beats, crowd = ledger.workers.sample(_ASKED)
    return [
        beat
        for beat in beats
        if beat["id"] != me
        and beat["state"] in ("starting", "loading", "working")
        and ledger.clock() - beat["at"] < late_s
        and process_alive(beat["host"], beat["pid"]) is not False
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
    """Whether a worker should not claim a shard: those who are much faster do all that is left before it did one more.

    `pace` is its own speed in bytes a second, 0 while that is not known; `held` has the bytes done of each shard it is
    at. On a CPU beside GPUs it takes no second shard before both speeds are known. Also what the others need for all
    that is left, in seconds, where it was reckoned.
    """
    speeds = [float(peer["bytes_per_s"]) for peer in peers if peer["bytes_per_s"]]
    if not pace or not speeds:
        return bool(held) and kind == "cpu" and any(peer.get("kind") == "cuda" for peer in peers), 0.0
    if pace * _MUCH_SLOWER >= fmean(speeds):
        return False, 0.0
    done = ledger.commits.shards()
    left = [s.weight_bytes for s in plan.shards if s.index not in done and s.index not in held]
    if not left:
        return False, 0.0
    rest_s = sum(left) / (sum(speeds) * crowd)
    return remaining_s(plan, held, pace) + fmean(left) / pace > rest_s, rest_s


def remaining_s(plan: Plan, held: Mapping[int, int], pace: float) -> float:
    """What a worker of this pace still needs for what it has begun."""
    return sum(max(0, plan.shards[shard].weight_bytes - run) for shard, run in held.items()) / pace
