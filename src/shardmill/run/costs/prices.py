"""What a device costs per hour, by the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardmill.plan.sizing.catalogue import CPU, Catalogue, Chip
from shardmill.plan.spec import Execution
from shardmill.run.status.times import RunTimes

# What the driver calls a slice of a GPU (MIG): how many sevenths of its processors and how much memory it has.
_SLICE = re.compile(r"(?P<whole>.+?) MIG (?P<sevenths>\d)g\.(?P<gb>\d+)gb")


def find_price(catalogue: Catalogue, device: str, cores: int = 0) -> float | None:
    """Dollars per hour of the device of a worker; `cores` are those of its machine. None if no price is known."""
    chip, share = find_rented(catalogue, device)
    price = None if chip is None else price_chip(chip, cores)
    return None if price is None else price * share


def find_rented(catalogue: Catalogue, device: str) -> tuple[Chip | None, float]:
    """The chip that a device is, or is a slice of, and its share of it: of memory or of processors, what is more."""
    match = _SLICE.match(device)
    if match is None:
        return catalogue.find(device), 1.0
    chip = catalogue.find(match["whole"])
    return chip, 1.0 if chip is None else min(1.0, max(int(match["sevenths"]) / 7, int(match["gb"]) / chip.memory_gb))


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
