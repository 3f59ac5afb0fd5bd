"""What this machine costs while it prepares and finishes a run."""

from __future__ import annotations

from collections.abc import Iterable

from shardmill.plan.spec import Execution
from shardmill.run.status.times import RunTimes


def price_around(times: RunTimes, execution: Execution, hourly: Iterable[float | None]) -> float:
    """Dollars for preparing and finishing a run while no worker was there: of its dearest device, if that is here."""
    if execution.engine != "local":
        return 0.0
    return times.around_s * max((price for price in hourly if price is not None), default=0.0) / 3600
