"""Whether a run can be done by its deadline and within its budget, said before anything starts.

Design: docs/design/deadlines.md
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from shardmill.core.console import count, duration
from shardmill.core.devices import Device, cores
from shardmill.core.errors import UsageError
from shardmill.engines import LOCAL
from shardmill.ledger import Ledger, RunForecast
from shardmill.plan import Plan
from shardmill.plan.sizing.catalogue import Catalogue, load_catalogue
from shardmill.plan.sizing.prices import find_price, spent_on
from shardmill.plan.spec import Execution, Spec
from shardmill.run.costs.rates import count_devices, expect
from shardmill.run.status.state import read_status
from shardmill.tasks import open_task
from shardmill.tasks.context import LongTask


def keep_within(ledger: Ledger | None, plan: Plan, spec: Spec, devices: Sequence[Device]) -> Spec:
    """The spec of a run that acts on its deadline and its budget, if it has one; UsageError if it cannot keep them.

    What the run in the folder has done and spent already counts, if it is the same one. A deadline that it had before
    is not refused: it may be resumed after it. What cannot be known before anything was measured is decided while the
    run goes. Workers on items of hours are not counted: more of them would not end an item sooner.
    """
    execution = spec.execution
    if execution.deadline is None and execution.budget_usd is None:
        return spec
    if isinstance(open_task(plan.work.task, plan.work.params), LongTask):
        return spec
    now, catalogue = time.time(), load_catalogue()
    found = ledger.find_plan() if ledger is not None else None
    status = read_status(ledger, found) if ledger is not None and found is not None and found.id == plan.id else None
    left = 1.0 - (status.share if status is not None else 0.0)
    began = min((w["started"] or w["began"] for w in status.workers if w["began"]), default=now) if status else now
    if left <= 0:
        return spec
    if execution.budget_usd is not None:
        _check_prices(execution, devices, catalogue)
        workers, unlisted = (status.workers, status.unlisted or {}) if status is not None else ([], {})
        spent, _ = spent_on(workers, unlisted, catalogue, execution.usd_per_hour)
        _check_spent(execution.budget_usd, spent or 0.0)
    forecast = expect(plan, devices, execution.precision, now)
    if forecast is not None:
        _check_budget(execution, plan, forecast, devices, catalogue, left)
    if status is None or ledger is None or ledger.execution().get("deadline") != execution.deadline:
        _check_deadline(execution, forecast, now, began, left)
    update: dict[str, Any] = {"acts": True}
    if execution.engine == LOCAL and execution.workers is None:
        update["workers"] = len(devices)
    return spec.model_copy(update={"execution": execution.model_copy(update=update)})


def _check_prices(execution: Execution, devices: Sequence[Device], catalogue: Catalogue) -> None:
    """Refuse a budget of a run whose devices have no price."""
    if execution.usd_per_hour is not None or execution.price_in is not None or execution.price_out is not None:
        return
    for device in devices:
        if find_price(catalogue, device.name, cores()) is None:
            raise UsageError(
                f"--budget: nobody knows the price of {device.name}.",
                hint="Give it per device and hour: --price 0.526, or in ~/.config/shardmill/devices.toml.",
            )


def _check_spent(budget_usd: float, spent: float) -> None:
    if spent >= budget_usd:
        raise UsageError(
            f"--budget: {usd(spent)} of {usd(budget_usd)} are spent already.",
            hint=f"Give more for the whole run: --budget {math.ceil(2 * spent * 100) / 100:g}USD",
        )


def _check_deadline(execution: Execution, forecast: RunForecast | None, now: float, began: float, left: float) -> None:
    """Refuse a deadline that is past, or that the fastest that was ever measured would miss."""
    at = execution.deadline_at(began)
    if at is None:
        return
    if at <= now:
        raise UsageError(
            f"--deadline {execution.deadline}: that was {duration(now - at)} ago.",
            hint="Give a later one: a time, or a duration from the start of the run's first worker.",
        )
    if forecast is None or now + forecast.low_s * left <= at:
        return
    needed = math.ceil(forecast.devices * forecast.high_s * left / (at - now))
    raise UsageError(
        f"--deadline {execution.deadline}: {count(forecast.devices, 'device')} like this one took "
        f"{duration(forecast.low_s * left)} at best for such work ({forecast.basis}).",
        hint=f"Allow {duration(forecast.high_s * left)}, or use about {needed:,} of them. `shardmill plan --deadline` "
        "compares devices.",
    )


def _check_budget(
    execution: Execution,
    plan: Plan,
    forecast: RunForecast,
    devices: Sequence[Device],
    catalogue: Catalogue,
    left: float,
) -> None:
    """Refuse a budget that does not last for the first shard, or that is known to be too small for all of them."""
    budget = execution.budget_usd
    hourly = execution.usd_per_hour
    hourly = find_price(catalogue, devices[0].name, cores()) if hourly is None else hourly
    if budget is None or hourly is None:
        return
    whole = count_devices(devices) * hourly / 3600 * forecast.low_s * left
    first = whole * max((shard.weight_bytes for shard in plan.shards), default=0) / max(1, plan.weight_bytes)
    if min(first, whole) > budget:
        raise UsageError(
            f"--budget: the first shard costs more than {usd(budget)}: {usd(first)} at best.",
            hint=f"All {count(len(plan.shards), 'shard')} cost {usd(whole)} at best. Smaller ones: --shard-bytes.",
        )
    if whole > budget:
        raise UsageError(
            f"--budget: what is left costs {usd(whole)} at best, and the budget is {usd(budget)}.",
            hint=f"Give --budget {math.ceil(2 * whole * 100) / 100:g}USD, take a part with --limit, or see cheaper "
            "devices: shardmill plan --budget",
        )


def usd(amount: float) -> str:
    return f"${amount:,.4f}" if amount < 1 else f"${amount:,.2f}"
