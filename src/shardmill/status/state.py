"""The state of a run from its folder alone, whichever engine runs it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardmill.console import duration
from shardmill.ledger import Ledger, is_vanished
from shardmill.plan import Plan
from shardmill.status.load import TableLoad

_LATE_S = 30.0
_OLD_S = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a run. `share` and `eta_s` count source bytes, which approximate tokens, not shards.

    `rows` are items of the source; `windows` are the pieces they were split into, 0 if they were not. `placement` is
    the engine's line about its workers, including those not started yet. `load` is set for a run into a table if the
    database was read too.
    """

    run: str
    plan: str
    state: str
    shards: int
    shards_done: int
    rows: int
    windows: int
    errors: int
    tokens: int
    truncated: int
    share: float
    rows_per_s: float
    tokens_per_s: float
    eta_s: float | None
    device_s: float
    placement: str
    workers: list[dict[str, Any]]
    load: TableLoad | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_status(ledger: Ledger, plan: Plan | None = None) -> Status:
    plan = plan or ledger.plan()
    commits = ledger.commits.read()
    workers = [_with_liveness(w, ledger.clock()) for w in ledger.workers.read()]
    live = [w for w in workers if w["live"]]
    weight_done = sum(plan.shards[i].weight_bytes for i in commits if i < len(plan.shards))
    rows = sum(c.rows for c in commits.values())
    tokens = sum(c.tokens for c in commits.values())
    under_way: dict[int, tuple[int, int]] = {}
    for worker in live:
        for key, state in worker["open"].items():
            shard = int(key)
            if shard not in commits and shard < len(plan.shards):
                weight = min(state["bytes"], plan.shards[shard].weight_bytes)
                under_way[shard] = max(under_way.get(shard, (0, 0)), (weight, state["rows"]))
    weight_done += sum(weight for weight, _ in under_way.values())
    rows += sum(count for _, count in under_way.values())
    total = plan.weight_bytes or 1
    complete = len(commits) == len(plan.shards)
    speed = sum(w["bytes_per_s"] for w in live)
    return Status(
        run=ledger.url,
        plan=plan.id,
        state="complete" if complete else "running" if live else "stopped" if commits or workers else "planned",
        shards=len(plan.shards),
        shards_done=len(commits),
        rows=rows,
        windows=sum(c.inputs for c in commits.values()),
        errors=sum(c.errors for c in commits.values()),
        tokens=tokens,
        truncated=sum(c.truncated for c in commits.values()),
        share=1.0 if complete else min(1.0, weight_done / total),
        rows_per_s=sum(w["rows_per_s"] for w in live),
        tokens_per_s=sum(w["tokens_per_s"] for w in live),
        eta_s=0.0 if complete else (total - weight_done) / speed if speed else None,
        device_s=round(sum(c.timings.get("device_s", 0.0) for c in commits.values()), 3),
        placement="" if complete else _placement(ledger),
        workers=workers,
    )


def _placement(ledger: Ledger) -> str:
    """The engine's line, with its age if it is old."""
    line, at = ledger.notes.placement()
    age_s = ledger.clock() - at
    return f"{line} ({duration(age_s)} ago)" if line and age_s > _OLD_S else line


def _with_liveness(worker: dict[str, Any], now: float) -> dict[str, Any]:
    """A worker is live if its last heartbeat is recent and, on this host, its process exists."""
    beating = now - worker["at"] < _LATE_S and worker["state"] not in ("done", "stopped", "failed")
    live = beating and not is_vanished(worker)
    return {**worker, "live": live, "beat_age_s": round(now - worker["at"], 1)}
