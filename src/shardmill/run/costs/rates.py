"""The expected time of a run from earlier measurements, and the measurements of a finished run."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from shardmill.core.devices import Device
from shardmill.ledger import DoneShard, Ledger, RunForecast
from shardmill.plan import Plan
from shardmill.plan.sizing.measured import Measured
from shardmill.plan.sizing.profile import CPU, Rated, own_cpu, recall_rate, recall_rates, remember_rate, work_digest
from shardmill.plan.sizing.speed import measured_speed

# Shorter work is too short to measure a rate.
_SHORTEST_S = 3.0


def expect(plan: Plan, devices: Sequence[Device], precision: str, now: float) -> RunForecast | None:
    """Forecast a run from now on; None if no similar run was measured on this machine, or devices are mixed."""
    if _mixed(devices):
        return None
    measured = recall_rate(rated(plan, devices[0].name, precision))
    if measured is None:
        return None
    speed, count = measured_speed(None, 0.0, measured), count_devices(devices)
    rate = speed.tokens_per_s.scaled(count * measured.bytes_per_s / measured.tokens_per_s)
    low, likely, high = (plan.weight_bytes / each for each in (rate.high, rate.likely, rate.low))
    start = speed.start_s
    return RunForecast(now, start.low + low, start.likely + likely, start.high + high, count, speed.basis)


def learn(ledger: Ledger, plan: Plan, devices: Sequence[Device], precision: str, since: float) -> Measured | None:
    """Record the rate of the work since a time; None if that was too short, or devices are mixed."""
    if _mixed(devices):
        return None
    commits = [c for c in ledger.segments.read(len(plan.shards)).values() if c.finished_at >= since]
    began = [float(w["began"]) for w in ledger.workers.read() if w["began"] >= since and w["rows"]]
    if not commits or not began:
        return None
    work_s = max(c.finished_at for c in commits) - min(began)
    tokens, rows = sum(c.tokens for c in commits), sum(c.rows for c in commits)
    inputs = sum(c.inputs or c.rows for c in commits)
    if work_s < _SHORTEST_S or not tokens or not rows:
        return None
    count = count_devices(devices)
    measured = Measured(
        tokens_per_s=tokens / work_s / count,
        items_per_s=rows / work_s / count,
        bytes_per_s=sum(plan.shards[c.shard].weight_bytes for c in commits) / work_s / count,
        mean_tokens=tokens / inputs,
        start_s=max(0.0, min(began) - since),
        tokens=tokens,
        workers=len(devices),
        date=str(datetime.date.today()),
        kernel=_kernel(ledger, commits),
    )
    remember_rate(rated(plan, devices[0].name, precision), measured)
    return measured


def rated(plan: Plan, device: str, precision: str) -> Rated:
    return Rated.on(device, _digest(plan), precision)


def known_rates(plan: Plan, precision: str) -> dict[str, Measured]:
    """The recorded rates of this work, by device; of CPUs, only this machine's."""
    found = recall_rates(_digest(plan), precision)
    return {
        CPU if device == own_cpu() else device: measured
        for device, measured in found.items()
        if device == own_cpu() or device.partition(" ")[0] != CPU
    }


def _digest(plan: Plan) -> str:
    return work_digest(plan.work.task, plan.fingerprint, plan.work.params, listed=bool(plan.work.root))


def count_devices(devices: Sequence[Device]) -> int:
    """The number of devices: GPUs count once however many workers share them, a machine's CPU is one."""
    return len({device.visible for device in devices})


def _mixed(devices: Sequence[Device]) -> bool:
    return len({device.name for device in devices}) > 1


def _kernel(ledger: Ledger, commits: Sequence[DoneShard]) -> str:
    names = {c.worker for c in commits}
    notes = [note for w in ledger.workers.read() if w["id"] in names for note in w["notes"]]
    return next(iter(notes), "")
