"""What a device costs per hour, by the catalogue."""

from __future__ import annotations

from shardmill.plan.sizing.catalogue import CPU, Catalogue, Chip


def find_price(catalogue: Catalogue, device: str, cores: int = 0) -> float | None:
    """Dollars per hour of the device of a worker; `cores` are those of its machine. None if no price is known."""
    chip = catalogue.find(device)
    return None if chip is None else price_chip(chip, cores)


def price_chip(chip: Chip, cores: int) -> float | None:
    """Dollars per hour. The catalogue's CPU is a small machine; a larger one costs more by its number of cores."""
    if chip.usd is None or chip.name != CPU or not cores:
        return chip.usd
    return chip.usd * cores / chip.cores
