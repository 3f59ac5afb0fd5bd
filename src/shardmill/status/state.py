"""The state of a run from its folder alone, whichever engine runs it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardmill.console import duration
from shardmill.ledger import FAILED, STOPPED, Ledger, Step, is_live
from shardmill.plan import Plan
from shardmill.status.load import TableLoad

_OLD_S = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a run. `share` and `eta_s` count source bytes, which approximate tokens, not shards.

    The rates are those of the workers now, and averages over the time that any worker worked if the run is complete.

    `rows` are items of the source; `windows` are the pieces they were split into, 0 if they were not. `placement` is
    the engine's line about its workers, including those not started yet. `steps` follow the last shard. `load` is set
    for a run into a table if the database was read too. `by` is who stopped the run or found that it failed, with
    `cause` and `hint` if it failed.
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
    tokens_out: int
    truncated: int
    share: float
    rows_per_s: float
    tokens_per_s: float
    eta_s: float | None
    device_s: float
    placement: str
    workers: list[dict[str, Any]]
    steps: list[Step]
    load: TableLoad | None = None
    by: str = ""
    cause: str = ""
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """What a progress bar says of it."""
        live = [w for w in self.workers if w["live"]]
        loading = [w for w in live if w["state"] in ("starting", "loading")]
        if loading and (not self.rows or len(loading) == len(live)):
            return "loading the model"
        if self.placement and not live:
            return self.placement
        errors = f" · {self.errors:,} errors" if self.errors else ""
        return f"{self.rows:,} rows · {self.rows_per_s:,.0f}/s{errors} · {duration(self.eta_s)} left"


def read_status(ledger: Ledger, plan: Plan | None = None) -> Status:
    plan = plan or ledger.plan()
    done = ledger.segments.read(len(plan.shards))
    workers = [_with_liveness(w, ledger.clock()) for w in ledger.workers.read()]
    live = [w for w in workers if w["live"]]
    weight_done = sum(plan.shards[i].weight_bytes for i in done if i < len(plan.shards))
    rows = sum(c.rows for c in done.values())
    tokens = sum(c.tokens for c in done.values())
    under_way: dict[int, tuple[int, int]] = {}
    for worker in live:
        for key, state in worker["open"].items():
            shard = int(key)
            if shard not in done and shard < len(plan.shards):
                weight = min(state["bytes"], plan.shards[shard].weight_bytes)
                under_way[shard] = max(under_way.get(shard, (0, 0)), (weight, state["rows"]))
    weight_done += sum(weight for weight, _ in under_way.values())
    rows += sum(count for _, count in under_way.values())
    total = plan.weight_bytes or 1
    complete = len(done) == len(plan.shards)
    steps = sorted(ledger.steps.read(), key=lambda step: step.step) if complete else []
    speed = sum(w["bytes_per_s"] for w in live)
    worked_s = _worked_s(workers) if complete else 0.0
    decided = ledger.state.look()
    ended = decided.state in (STOPPED, FAILED)
    idle = decided.state if ended else "stopped" if done or workers else "planned"
    state = _finishing(steps) if complete else "running" if live else idle
    ended = ended and state != "complete"
    return Status(
        run=ledger.url,
        plan=plan.id,
        state=state,
        shards=len(plan.shards),
        shards_done=len(done),
        rows=rows,
        windows=sum(c.inputs for c in done.values()),
        errors=sum(c.errors for c in done.values()),
        tokens=tokens,
        tokens_out=sum(c.tokens_out for c in done.values()),
        truncated=sum(c.truncated for c in done.values()),
        share=1.0 if complete else min(1.0, weight_done / total),
        rows_per_s=rows / worked_s if worked_s else sum(w["rows_per_s"] for w in live),
        tokens_per_s=tokens / worked_s if worked_s else sum(w["tokens_per_s"] for w in live),
        eta_s=0.0 if complete else (total - weight_done) / speed if speed else None,
        device_s=round(sum(c.device_s for c in done.values()), 3),
        placement="" if complete else _placement(ledger),
        workers=workers,
        steps=steps,
        by=decided.by if ended else "",
        cause=decided.cause if ended else "",
        hint=decided.hint if ended else "",
    )


def _worked_s(workers: list[dict[str, Any]]) -> float:
    """The time in which at least one worker worked."""
    worked_s = until = 0.0
    for began, at in sorted((w["began"], w["at"]) for w in workers if w["began"] and w["commits"]):
        worked_s += max(0.0, at - max(began, until))
        until = max(until, at)
    return worked_s


def _finishing(steps: list[Step]) -> str:
    """The state of a run whose shards are all committed."""
    states = {step.state for step in steps}
    return "failed" if "failed" in states else "finishing" if states & {"free", "taken"} else "complete"


def _placement(ledger: Ledger) -> str:
    """The engine's line, with its age if it is old."""
    line, at = ledger.notes.placement()
    age_s = ledger.clock() - at
    return f"{line} ({duration(age_s)} ago)" if line and age_s > _OLD_S else line


def _with_liveness(worker: dict[str, Any], now: float) -> dict[str, Any]:
    return {**worker, "live": is_live(worker, now), "beat_age_s": round(now - worker["at"], 1)}
