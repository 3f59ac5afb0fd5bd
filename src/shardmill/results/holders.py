"""Which stores have which editions of a run, by the records of its deliveries; no store is asked, it may be away.

The cut of a delivery is written down before the first row goes. Once a store has all of an edition, the cuts that other
editions had for it are forgotten. Design: docs/design/delivery.md
"""

from __future__ import annotations

from collections.abc import Collection

from shardmill.ledger import DONE, Editions, Ledger

CUT = "cut"


def find_holders(editions: Editions, numbers: Collection[int]) -> dict[int, list[str]]:
    """The addresses of the stores that have some of each edition, or were to become it; without those of none."""
    found = {number: _cut_for(editions, number) for number in numbers}
    return {number: addresses for number, addresses in found.items() if addresses}


def forget_others(ledger: Ledger, address: str) -> None:
    """Note that a store has this edition alone."""
    editions = Editions(ledger.url)
    own = editions.number_of(ledger.url)
    for number in range(1, editions.highest() + 1):
        other = Ledger(editions.open(number))
        if number != own and other.find_plan() is not None:
            other.lots.forget(f"{CUT}:{address}")


def _cut_for(editions: Editions, number: int) -> list[str]:
    ledger = Ledger(editions.open(number))
    if ledger.find_plan() is None:
        return []
    return sorted(cut.step.partition(":")[2] for cut in ledger.lots.read(CUT) if cut.state == DONE)
