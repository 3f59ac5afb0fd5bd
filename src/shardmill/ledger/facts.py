"""What a status is made of: read from the records of a run, or from its rolled-up view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from shardmill.ledger.ledger import Ledger
from shardmill.ledger.overview import is_large
from shardmill.ledger.view import COMMITTED, RunView, Totals, mark_states, merge_reasons
from shardmill.ledger.worker import is_live
from shardmill.plan import Plan

# A view is out of date after this many of its intervals: nobody writes it any more.
_LATE_VIEWS = 3
# Heartbeats that are read to see whether anybody works on a run whose view is out of date.
_ASKED = 8


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read of a run. `done` has the source bytes done up to each time; `states` one byte per shard.

    `view_age_s` is None if the records themselves were read. `reasons` is None if no worker recorded any.
    """

    totals: Totals
    states: bytes
    workers: list[dict[str, Any]]
    done: list[tuple[float, float]]
    reasons: list[dict[str, Any]] | None
    view_age_s: float | None = None
    unlisted: dict[str, float] | None = None

    @property
    def live(self) -> list[dict[str, Any]]:
        return [worker for worker in self.workers if worker["live"]]


def read_facts(ledger: Ledger, plan: Plan, *, whole: bool) -> Facts:
    """From the records. The `whole` state of the shards takes two more listings."""
    shards, now = len(plan.shards), ledger.clock()
    done = ledger.segments.read(shards)
    workers = [with_liveness(beat, now) for beat in ledger.workers.read()]
    held = {int(shard) for worker in workers if worker["live"] for shard in worker["open"]}
    convicted: list[int] = []
    if whole and len(done) < shards:
        held |= set(ledger.leases.shards())
        convicted = [s for s in ledger.folder.shards("suspects") if ledger.suspects.get(s).poison]
    weights = plan.weights
    ends = sorted((one.finished_at, weights[one.shard]) for one in done.values() if one.shard < shards)
    sums = accumulate(weight for _, weight in ends)
    recorded = [worker["reasons"] for worker in workers if "reasons" in worker]
    return Facts(
        totals=Totals().plus((one for one in done.values() if one.shard < shards), weights),
        states=mark_states(shards, done, held, convicted),
        workers=workers,
        done=[(at, float(total)) for (at, _), total in zip(ends, sums, strict=True)],
        reasons=merge_reasons(recorded) if recorded else None,
    )


def find_view(ledger: Ledger, plan: Plan, *, is_done: bool) -> RunView | None:
    """The view to show a run by; None if the records must be read.

    A small run is read from its records, unless it has many workers. So is a finished one without its last view.
    """
    shards = len(plan.shards)
    if not is_large(shards, 0) and not is_large(shards, sum(1 for _ in ledger.store.list("workers/"))):
        return None
    view = ledger.overview.read()
    if view is None or len(view.states) != shards or (is_done and not view.final):
        return None
    late = ledger.clock() - view.at > _LATE_VIEWS * view.every_s
    return None if late and not view.final and not is_large(shards, 0) else view


def facts_of_view(ledger: Ledger, view: RunView) -> Facts:
    """From the view. If it is out of date, some heartbeats show whether anybody still works."""
    now = ledger.clock()
    late = view.final or now - view.at > _LATE_VIEWS * view.every_s
    alive = not view.final and (not late or _is_anybody_alive(ledger, now))
    workers = [
        {**beat, "live": bool(beat.get("live")) and alive, "beat_age_s": round(now - beat["at"], 1)}
        for beat in view.workers
    ]
    points = view.history.points
    totals = list(accumulate(point.bytes for point in points))
    first = [(points[0].at - points[0].seconds, 0.0)] if points else []
    return Facts(
        totals=view.totals,
        states=view.states,
        workers=sorted(workers, key=lambda worker: str(worker["id"])),
        done=first + [(point.at, float(total)) for point, total in zip(points, totals, strict=True)],
        reasons=view.reasons,
        view_age_s=round(max(0.0, now - view.at), 1),
        unlisted=view.unlisted,
    )


def under_way(facts: Facts, weights: Sequence[int]) -> dict[int, tuple[float, int]]:
    """The bytes and rows done of each shard that a living worker holds and nobody committed."""
    found: dict[int, tuple[float, int]] = {}
    for worker in facts.live:
        for key, state in worker["open"].items():
            shard = int(key)
            if shard < len(weights) and facts.states[shard] != COMMITTED:
                weight = min(weights[shard], max(state["bytes"], weights[shard] * _share_of_item(state)))
                found[shard] = max(found.get(shard, (0, 0)), (weight, state["rows"]))
    return found


def _share_of_item(state: Mapping[str, Any]) -> float:
    """How much of a shard's first item is done, as a task that runs for hours reports it."""
    step, steps = state.get("step"), state.get("steps")
    if not isinstance(step, int) or not isinstance(steps, int) or steps < 1 or state["rows"]:
        return 0.0
    return min(1.0, max(0.0, step / steps))


def with_liveness(worker: dict[str, Any], now: float) -> dict[str, Any]:
    return {**worker, "live": is_live(worker, now), "beat_age_s": round(now - worker["at"], 1)}


def _is_anybody_alive(ledger: Ledger, now: float) -> bool:
    return any(is_live(beat, now) for beat in ledger.workers.sample(_ASKED)[0])
