"""The work that is left, for whoever decides how many workers there should be."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from shardmill.core.errors import StoreError
from shardmill.plan.sizing import SHARDS_PER_WORKER
from shardmill.watch.monitor.reading import RunSeen

# A reading that is older than this, several times as old as any should be, says that the store does not answer.
_OLD_S = 120.0


class Backlog(BaseModel):
    """`unfinished` shards of wanted runs, those `held` by a worker included, and how many such `runs` there are.

    A run whose shards are all committed, but that is not done, counts as one: its last steps need a worker, too. Of a
    run with a deadline, eight shards count for each worker that is wanted.
    """

    unfinished: int
    held: int
    runs: int


def count_backlog(seen: Iterable[RunSeen], now: float) -> Backlog:
    """What is left of these runs. StoreError if one could not be read: nobody knows then, and 0 would be wrong."""
    unfinished = held = runs = 0
    for run in seen:
        if run.gone:
            continue
        age_s = run.age_s(now)
        if run.trouble or run.status is None or age_s is None or age_s > _OLD_S:
            raise StoreError(f"{run.key} could not be read{f': {run.trouble}' if run.trouble else ''}.")
        status = run.status
        left = max(1, status.shards - status.shards_done) if status.wanted else 0
        running = min(left, (status.shard_states or {}).get("running", 0))
        staff = status.staff.now if status.staff is not None else None
        if staff is not None:
            # No more than make an autoscaler have the workers that are wanted; at the budget none for new shards.
            left = min(left, max(running, SHARDS_PER_WORKER * staff.wanted))
        unfinished += left
        held += running
        runs += bool(left)
    return Backlog(unfinished=unfinished, held=held, runs=runs)
