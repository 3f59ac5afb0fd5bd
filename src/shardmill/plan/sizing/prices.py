"""What devices cost per hour, by the catalogue, and what workers have cost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardmill.plan.sizing.catalogue import CPU, Catalogue, Chip

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


def price_chip(chip: Chip, cores: int) -> float | None:
    """Dollars per hour. The catalogue's CPU is a small machine; a larger one costs more by its number of cores."""
    if chip.usd is None or chip.name != CPU or not cores:
        return chip.usd
    return chip.usd * cores / chip.cores


def find_paid(workers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The records of workers whose devices are paid: a host's CPU is included in the price of its GPU."""
    with_gpu = {w["host"] for w in workers if w.get("kind") == "cuda"}
    return [w for w in workers if w.get("kind") != "cpu" or w["host"] not in with_gpu]


def spent_on(
    workers: Sequence[Mapping[str, Any]],
    unlisted: Mapping[str, float],
    catalogue: Catalogue,
    usd_per_hour: float | None = None,
) -> tuple[float | None, float | None]:
    """Dollars for the time of all workers, and dollars per second of the living; None if a price is unknown.

    `usd_per_hour` of a device goes before the catalogue's price. `unlisted` has the seconds of further workers, by
    device: they are taken to have machines like the others.
    """
    paid = find_paid(workers)
    sizes = {w["device"]: w["cores"] for w in paid}

    def price(device: str, cores: int) -> float | None:
        return usd_per_hour if usd_per_hour is not None else find_price(catalogue, device, cores)

    hourly = [(w, price(w["device"], w["cores"])) for w in paid]
    others = {device: price(device, sizes.get(device, 0)) for device in unlisted}
    if not paid or None in others.values() or any(each is None for _, each in hourly):
        return None, None
    spent = sum(_device_s(w) * (each or 0.0) for w, each in hourly)
    spent += sum(seconds * (others[device] or 0.0) for device, seconds in unlisted.items())
    return spent / 3600, sum(w["share"] * (each or 0.0) for w, each in hourly if w["live"]) / 3600


def _device_s(worker: Mapping[str, Any]) -> float:
    return float(worker["share"] * max(0.0, worker["at"] - (worker["started"] or worker["began"])))
