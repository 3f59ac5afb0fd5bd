"""What a device costs per hour, by the catalogue."""

from __future__ import annotations

from collections.abc import Iterable

from shardmill.plan.sizing.catalogue import CPU, Catalogue, Chip
from shardmill.plan.spec import Execution
from shardmill.run.status.times import RunTimes


def find_price(catalogue: Catalogue, device: str, cores: int = 0) -> float | None:
    """Dollars per hour of the device of a worker; `cores` are those of its machine. None if no price is known."""
    chip = catalogue.find(device)
    return None if chip is None else price_chip(chip, cores)


def price_around(times: RunTimes, execution: Execution, hourly: Iterable[float | None]) -> float:
    """Dollars for preparing and finishing a run while no worker was there: of its dearest device, if that is here."""
    if execution.engine != "local":
        return 0.0
    return times.around_s * max((price for price in hourly if price is not None), default=0.0) / 3600


def price_chip(chip: Chip, cores: int) -> float | None:
    """Dollars per hour. The catalogue's CPU is a small machine; a larger one costs more by its number of cores."""
    if chip.usd is None or chip.name != CPU or not cores:
        return chip.usd
    return chip.usd * cores / chip.cores
