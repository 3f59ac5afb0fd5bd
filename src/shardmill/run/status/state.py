"""The state of a run from its folder alone, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardmill.core.console import duration
from shardmill.core.errors import UsageError
from shardmill.core.startup import tell
from shardmill.ledger import COMMITTED, DONE, FAILED, STOPPED, WANTED, Ledger, StaffLog, Step, count_states
from shardmill.ledger.facts import Facts, facts_of_view, find_view, read_facts, under_way
from shardmill.plan import Plan
from shardmill.run.status.bound import find_bound
from shardmill.run.status.edition import EditionState
from shardmill.run.status.eta import Eta, WorkerPace, estimate_end
from shardmill.run.status.load import TableLoad
from shardmill.run.status.times import RunTimes, measure_times

_OLD_S = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a run. `share` and `eta_s` count source bytes, which approximate tokens, not shards.

    The rates are those of the workers now, and averages over the time that any worker worked if the run is complete.

    `rows` are items of the source; `windows` are the pieces they were split into, 0 if they were not. Committed shards
    have `made` rows of the result; to `dropped` items the task gave none. `placement` is the engine's line about its
    workers, including those not started yet. `steps` follow the last shard. `load` is set for a run into a table if the
    database was read too. `by` is who stopped the run or found that it failed, with `cause` and `hint` if it failed.

    `times` say how long the run took, by part. `eta_s` is None while it is unknown; nine times of ten the end is
    between `eta_low_s` and `eta_high_s`.
    `mean_rows_per_s` and `mean_tokens_per_s` count the time in which workers worked. A shard is `failed` in
    `shard_states` if rows of it killed workers and nobody works on it; `states` has one byte per shard. `reasons` are
    failed rows by reason with an example each, None if they were not recorded. `bound` says what limits the speed.
    `view_age_s` is the age of the view that was shown, None if the records themselves were read. `usd` and `usd_at_end`
    are None if a price is unknown. The run is `wanted` if its workers are to do what is left, as it was last decided at
    `decided_at`. `staff` has the wanted number of workers of a run with a deadline or a budget, and `edition` is of
    a run that was refreshed; None if it has none, or if that was not read.
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
    at: float = 0.0
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    mean_rows_per_s: float = 0.0
    mean_tokens_per_s: float = 0.0
    shard_states: dict[str, int] | None = None
    reasons: list[dict[str, Any]] | None = None
    bound: dict[str, Any] | None = None
    view_age_s: float | None = None
    unlisted: dict[str, float] | None = None
    times: RunTimes = field(default_factory=RunTimes)
    deadline_at: float | None = None
    budget_usd: float | None = None
    usd: float | None = None
    usd_at_end: float | None = None
    states: bytes = b""
    generation: str = ""
    wanted: bool = False
    made: int = 0
    dropped: int = 0
    decided_at: float = 0.0
    rows_committed: int = 0
    edition: EditionState | None = None
    staff: StaffLog | None = None

    @property
    def past_deadline_s(self) -> float | None:
        """Seconds by which the expected end is past the deadline, negative if it is before; None if one is unknown."""
        if self.deadline_at is None or self.eta_s is None:
            return None
        return self.at + self.eta_s - self.deadline_at

    @property
    def expected_rows(self) -> int | None:
        """How many items the source has, about."""
        return round(self.rows / self.share) if self.share and self.rows else None

    def to_json(self) -> dict[str, Any]:
        said = {**asdict(self), "past_deadline_s": self.past_deadline_s, "expected_rows": self.expected_rows}
        said |= {"began_at": self.times.began_at, "elapsed_s": self.times.elapsed_s}
        del said["states"]
        return said

    def said(self) -> dict[int, str]:
        """What long items under way reported last, by shard."""
        return {shard: text for worker in self.workers for shard, text in said_by(worker).items()}

    def describe(self) -> str:
        """What a progress bar says of it."""
        live = [w for w in self.workers if w["live"]]
        loading = [w for w in live if w["state"] in ("starting", "loading")]
        if loading and (not self.rows or len(loading) == len(live)):
            return _starting(loading[0], self.at)
        if self.placement and not live:
            return self.placement
        if not self.rows and (said := self.said()):
            return said[min(said)]
        errors = f" · {self.errors:,} errors" if self.errors else ""
        return f"{self.rows:,} rows · {self.rows_per_s:,.0f}/s{errors} · {duration(self.eta_s)} left"


def _starting(worker: Mapping[str, Any], now: float) -> str:
    """What a worker does before its work begins; those of earlier versions do not say it."""
    doing = worker.get("doing")
    if isinstance(doing, list) and len(doing) == 2 and isinstance(doing[0], str) and isinstance(doing[1], int | float):
        return tell(doing[0], now - doing[1])
    return tell("", 0.0)


def said_by(worker: Mapping[str, Any]) -> dict[int, str]:
    """What the long items of a living worker reported last, by shard."""
    return {
        int(shard): " · ".join([_step(at), *(f"{name} {_figure(value)}" for name, value in at["figures"].items())])
        for shard, at in worker["open"].items()
        if worker["live"] and isinstance(at.get("step"), int) and isinstance(at.get("figures"), dict)
    }


def _step(said: Mapping[str, Any]) -> str:
    return f"step {said['step']:,}" + (f" of {said['steps']:,}" if isinstance(said.get("steps"), int) else "")


def _figure(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, int | float) else "no number"


def read_status(ledger: Ledger, plan: Plan | None = None) -> Status:
    """The state from the records themselves: exact, and one request per worker and per new commit."""
    plan = plan or ledger.plan()
    return _make_status(ledger, plan, read_facts(ledger, plan, whole=False))


def current_plan(ledger: Ledger, plan: Plan | None = None) -> Plan:
    """The plan of a run that may be deleted or started over while it is watched."""
    if plan is None:
        return ledger.plan()
    if ledger.store.head("plan.json") is None:
        raise UsageError(f"{ledger.url}: the run was deleted while it was watched.")
    if ledger.state.look().generation not in ("", plan.generation):
        return ledger.plan()
    ledger.see_growth(plan)
    return plan


def glance(ledger: Ledger, plan: Plan) -> Status:
    """The state in a few requests: from the view of a large run, from the records of a small one."""
    view = find_view(ledger, plan, is_done=ledger.state.look().state == DONE)
    facts = facts_of_view(ledger, view) if view is not None else read_facts(ledger, plan, whole=True)
    return _make_status(ledger, plan, facts)


def _make_status(ledger: Ledger, plan: Plan, facts: Facts) -> Status:
    totals, live, now = facts.totals, facts.live, ledger.clock()
    weights = plan.weights
    begun = under_way(facts, weights)
    weight_done = totals.weight_bytes + sum(weight for weight, _ in begun.values())
    total = sum(weights) or 1
    complete = totals.shards == len(plan.shards)
    steps = sorted(ledger.steps.read(), key=lambda step: step.step) if complete else []
    decided = ledger.state.look()
    ended = decided.state in (STOPPED, FAILED)
    idle = decided.state if ended else "stopped" if totals.shards or facts.workers else "planned"
    state = _finishing(steps) if complete else "running" if live else idle
    ended = ended and state != "complete"
    eta = Eta(0.0, 0.0, 0.0) if complete else _estimate(facts, weights, weight_done, now)
    rows = totals.rows + sum(count for _, count in begun.values())
    times = measure_times(facts.workers, decided.placed, steps, now)
    worked_s = times.work_s
    return Status(
        run=ledger.url,
        plan=plan.id,
        state=state,
        shards=len(plan.shards),
        shards_done=totals.shards,
        rows=rows,
        windows=totals.inputs,
        errors=totals.errors,
        tokens=totals.tokens,
        tokens_out=totals.tokens_out,
        truncated=totals.truncated,
        made=totals.rows_in_part,
        dropped=totals.dropped,
        share=1.0 if complete else min(1.0, weight_done / total),
        rows_per_s=rows / worked_s if complete and worked_s else sum(w["rows_per_s"] for w in live),
        tokens_per_s=totals.tokens / worked_s if complete and worked_s else sum(w["tokens_per_s"] for w in live),
        eta_s=eta.likely_s if eta else None,
        device_s=round(totals.device_s, 3),
        placement="" if complete else _placement(ledger),
        workers=facts.workers,
        steps=steps,
        by=decided.by if ended else "",
        cause=decided.cause if ended else "",
        hint=decided.hint if ended else "",
        at=now,
        eta_low_s=eta.low_s if eta else None,
        eta_high_s=eta.high_s if eta else None,
        mean_rows_per_s=round(rows / worked_s, 2) if worked_s else 0.0,
        mean_tokens_per_s=round(totals.tokens / worked_s, 2) if worked_s else 0.0,
        shard_states=count_states(facts.states),
        reasons=facts.reasons,
        bound=find_bound(live or facts.workers),
        view_age_s=facts.view_age_s,
        unlisted=facts.unlisted,
        times=times,
        states=facts.states,
        generation=plan.generation,
        wanted=decided.state == WANTED,
        decided_at=decided.at,
        rows_committed=totals.rows,
    )


def _estimate(facts: Facts, weights: list[int], weight_done: float, now: float) -> Eta | None:
    """When the last shard is committed, from the pace of the workers: as a view saw it, less the age of the view."""
    age_s = facts.view_age_s or 0.0
    now -= age_s
    paces, taken = [], set()
    for worker in facts.workers:
        began, until = worker["began"], worker["at"]
        held = []
        for key, state in worker["open"].items() if worker["live"] else ():
            shard = int(key)
            if shard < len(weights) and shard not in taken and facts.states[shard] != COMMITTED:
                taken.add(shard)
                held.append(float(max(0, weights[shard] - state["bytes"])))
        # Version 0.1.0 says its pace of late, not what it did in all.
        done = worker["bytes"] or worker["bytes_per_s"] * max(0.0, until - began)
        paces.append(WorkerPace(began, until, float(done), worker["live"], tuple(held)))
    waiting = [float(w) for i, w in enumerate(weights) if i not in taken and facts.states[i] != COMMITTED]
    began = min((pace.began for pace in paces), default=now)
    start = [] if facts.done and facts.done[0][0] <= began else [(began, 0.0)]
    history = [*start, *facts.done, (now, float(weight_done))]
    eta = estimate_end(now, waiting, paces, history)
    return eta and Eta(*(max(0.0, seconds - age_s) for seconds in (eta.likely_s, eta.low_s, eta.high_s)))


def _finishing(steps: list[Step]) -> str:
    """The state of a run whose shards are all committed."""
    states = {step.state for step in steps}
    return "failed" if "failed" in states else "finishing" if states & {"free", "taken"} else "complete"


def _placement(ledger: Ledger) -> str:
    """The engine's line, with its age if it is old."""
    line, at = ledger.notes.placement()
    age_s = ledger.clock() - at
    return f"{line} ({duration(age_s)} ago)" if line and age_s > _OLD_S else line
