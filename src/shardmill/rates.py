"""What a run is expected to take by what was measured here, and what it measured once it is done."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from shardmill.devices import Device
from shardmill.estimate.profile import Measured, Rated, recall_rate, remember_rate, work_digest
from shardmill.estimate.speed import measured_speed
from shardmill.ledger import Commit, Forecast, Ledger
from shardmill.plan import Plan

# Work that is done sooner than this says little about a rate.
_SHORTEST_S = 3.0


def expect(plan: Plan, devices: Sequence[Device], precision: str, now: float) -> Forecast | None:
    """What a run will take from now on; None where nothing like it was measured here, or devices are mixed."""
    if _mixed(devices):
        return None
    measured = recall_rate(rated(plan, devices[0].name, precision))
    if measured is None:
        return None
    speed, count = measured_speed(None, 0.0, measured), count_devices(devices)
    rate = speed.tokens_per_s.scaled(count * measured.bytes_per_s / measured.tokens_per_s)
    low, likely, high = (plan.weight_bytes / each for each in (rate.high, rate.likely, rate.low))
    start = speed.start_s
    return Forecast(now, start.low + low, start.likely + likely, start.high + high, count, speed.basis)


def learn(ledger: Ledger, plan: Plan, devices: Sequence[Device], precision: str, since: float) -> Measured | None:
    """Keep the rate of what was done since a time; None where that was too little to tell, or by mixed devices."""
    if _mixed(devices):
        return None
    commits = [c for c in ledger.commits().values() if c.finished_at >= since]
    began = [float(w["began"]) for w in ledger.workers() if w["began"] >= since and w["rows"]]
    if not commits or not began:
        return None
    work_s = max(c.finished_at for c in commits) - min(began)
    tokens, rows = sum(c.tokens for c in commits), sum(c.rows for c in commits)
    if work_s < _SHORTEST_S or not tokens or not rows:
        return None
    count = count_devices(devices)
    measured = Measured(
        tokens_per_s=tokens / work_s / count,
        items_per_s=rows / work_s / count,
        bytes_per_s=sum(plan.shards[c.shard].weight_bytes for c in commits) / work_s / count,
        mean_tokens=tokens / rows,
        start_s=max(0.0, min(began) - since),
        tokens=tokens,
        workers=len(devices),
        date=str(datetime.date.today()),
        kernel=_kernel(ledger, commits),
    )
    remember_rate(rated(plan, devices[0].name, precision), measured)
    return measured


def rated(plan: Plan, device: str, precision: str) -> Rated:
    return Rated(device, work_digest(plan.work.task, plan.fingerprint), precision)


def count_devices(devices: Sequence[Device]) -> int:
    """GPUs, however many workers share one; a machine's CPU is one device."""
    return len({device.visible for device in devices})


def _mixed(devices: Sequence[Device]) -> bool:
    return len({device.name for device in devices}) > 1


def _kernel(ledger: Ledger, commits: Sequence[Commit]) -> str:
    names = {c.worker for c in commits}
    notes = [note for w in ledger.workers() if w["id"] in names for note in w["notes"]]
    return next(iter(notes), "")
