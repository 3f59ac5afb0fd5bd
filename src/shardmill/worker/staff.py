"""A worker's part in how many workers there are: one of them decides now and then, all stop claiming at the budget.

Design: docs/design/deadlines.md
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from shardmill.core.dialect import shell_command
from shardmill.core.errors import ShardmillError
from shardmill.ledger import COMMITTED, Ledger
from shardmill.ledger.facts import Facts, facts_of_view, find_view, read_facts, under_way
from shardmill.plan import Plan
from shardmill.plan.sizing.catalogue import load_catalogue
from shardmill.plan.sizing.prices import find_price, spent_on
from shardmill.plan.sizing.staff import RunPace, Staff, StaffLimits, WorkerKind, decide_staff
from shardmill.plan.spec import Execution

# How often whoever has the duty decides, and how long it has it without doing so.
EVERY_S, _DUTY_S = 15.0, 60.0
# The pace is that of so long ago until now; one of less than the second is that of all the time.
_WINDOW_S, _SHORTEST_S = 600.0, 60.0
_KNOWN_S = 10.0
# How much slower than measured a run may turn out to be: at first, and once it was measured for a while.
_DOUBT_AT_FIRST, _DOUBT = 0.15, 0.05


class StaffDesk:
    """Looks at the wanted number with each heartbeat, and decides about it on a thread of its own."""

    def __init__(self, ledger: Ledger, plan: Plan, execution: Execution, worker: str) -> None:
        self._ledger, self._plan, self._execution, self._worker = ledger, plan, execution, worker
        self._decided_at = 0.0
        self._points: list[tuple[float, dict[str, tuple[float, float]]]] = []
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """See what was decided; decide if it is time and nobody else has the duty."""
        log, now = self._ledger.staff.look(), self._ledger.clock()
        mine = log is None or log.by == self._worker or log.until <= now
        if not mine or self._ledger.staff.is_ending or now - self._decided_at < EVERY_S:
            return
        if self._thread is None or not self._thread.is_alive():
            self._decided_at = now
            self._thread = threading.Thread(target=self._decide_quietly, name="staff", daemon=True)
            self._thread.start()

    def decide(self) -> None:
        """Decide now, unless another has the duty."""
        self._ledger.staff.decide(self._worker, _DUTY_S, self._choose)

    def _decide_quietly(self) -> None:
        """The next worker with the duty decides, if this one cannot."""
        with contextlib.suppress(ShardmillError):
            self.decide()

    def _choose(self, before: Staff | None) -> Staff:
        facts = _read(self._ledger, self._plan)
        now = self._ledger.clock()
        self._points = [each for each in self._points if each[0] > now - _WINDOW_S]
        self._points.append((now, {w["id"]: (w["at"], _bytes(w)) for w in facts.live}))
        rates = _measure(facts.live, self._points[0][1])
        pace = read_pace(facts, self._plan, self._execution, now, rates, measured_s=now - self._points[0][0])
        return decide_staff(pace, find_limits(facts, self._execution, before), before)


def find_limits(facts: Facts, execution: Execution, before: Staff | None) -> StaffLimits:
    """What the user said, as times and numbers. Where nobody said how many may work, those are it that do."""
    began = min((float(w["started"] or w["began"]) for w in facts.workers if w["began"]), default=None)
    most = execution.workers or max(len(facts.live), before.wanted if before is not None else 1, 1)
    least = min(execution.min_workers or 1, most)
    return StaffLimits(least, most, execution.deadline_at(began), execution.budget_usd)


def read_pace(
    facts: Facts, plan: Plan, execution: Execution, now: float, rates: dict[str, float], measured_s: float
) -> RunPace:
    """What a decision needs, from what was read of the run and the bytes per second of workers by device."""
    weights = plan.weights
    done = facts.totals.weight_bytes + sum(weight for weight, _ in under_way(facts, weights).values())
    open_shards = [weights[i] for i, state in enumerate(facts.states) if state != COMMITTED and i < len(weights)]
    catalogue, own = load_catalogue(), execution.usd_per_hour
    kinds = []
    for device in sorted({w["device"] for w in facts.live}):
        of_kind = [w for w in facts.live if w["device"] == device]
        hourly = own if own is not None else find_price(catalogue, device, of_kind[0]["cores"])
        usd_per_s = None if hourly is None else hourly * fmean(w["share"] for w in of_kind) / 3600
        kinds.append(WorkerKind(device, rates.get(device, 0.0), usd_per_s, len(of_kind)))
    working = [w for w in facts.workers if w["rows"]]
    usual = fmean(rates.values()) if rates else 0.0
    spent, _ = spent_on(facts.workers, facts.unlisted or {}, catalogue, own)
    tokens = facts.totals.tokens * (execution.price_in or 0.0) + facts.totals.tokens_out * (execution.price_out or 0.0)
    if execution.price_in is not None or execution.price_out is not None:
        spent = (spent or 0.0) + tokens / 1e6
    shard_s = max(open_shards, default=0) / usual if usual else 0.0
    return RunPace(
        now=now,
        began=min((float(w["started"] or w["began"]) for w in facts.workers if w["began"]), default=now),
        left=max(0.0, float(sum(weights) - done)),
        kinds=tuple(kinds),
        start_s=fmean(max(0.0, w["began"] - (w["started"] or w["began"])) for w in working) if working else 0.0,
        shard_s=shard_s,
        # A worker holds two shards, and the next decision is so far away.
        hold_s=2 * shard_s + EVERY_S,
        doubt=_DOUBT if measured_s >= _WINDOW_S / 2 else _DOUBT_AT_FIRST,
        spent_usd=spent,
    )


def _read(ledger: Ledger, plan: Plan) -> Facts:
    view = find_view(ledger, plan, is_done=False)
    return facts_of_view(ledger, view) if view is not None else read_facts(ledger, plan, whole=False)


def _measure(live: Sequence[dict[str, Any]], since: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Bytes per second of one worker, by device: lately, or in all its time if that is too short."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for worker in live:
        at, done = since.get(worker["id"], (0.0, 0.0))
        seconds, size = worker["at"] - at, _bytes(worker) - done
        if not at or seconds < _SHORTEST_S:
            seconds, size = worker["at"] - worker["began"], _bytes(worker)
        if worker["rows"] and seconds >= _KNOWN_S:
            seen.setdefault(worker["device"], []).append((seconds, size))
    return {
        device: sum(size for _, size in each) / sum(seconds for seconds, _ in each)
        for device, each in seen.items()
        if sum(size for _, size in each) > 0
    }


def _bytes(worker: dict[str, Any]) -> float:
    return float(worker["bytes"])


def end_at_budget(ledger: Ledger, by: str) -> bool:
    """Say that the run was stopped by its budget once nobody holds a shard any more; False if somebody does."""
    now = ledger.clock()
    if any(lease.until > now and lease.worker != by for lease in ledger.leases.read().values()):
        return False
    log, budget = ledger.staff.look(), ledger.execution().get("budget_usd")
    reason = log.now.reason if log is not None and log.now is not None else "it is spent"
    more = f"{2 * budget:g}USD" if isinstance(budget, int | float) else "USD"
    ledger.state.stop("its budget", reason, f"Go on with: {shell_command('resume', ledger.url, '--budget', more)}")
    return True
