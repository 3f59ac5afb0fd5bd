"""What a refresh did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardmill.core.console import count, duration


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh did, or would do: the items of the edition before and of this one, and where its rows are from.

    `errors` are items that failed, and `usd` is what it cost. `seconds_saved` and `usd_saved` are what the reused items
    took when they were computed; None if that is not known.
    """

    run: str
    edition: int
    changed: bool
    items_before: int
    items: int
    reused: int
    computed: int
    dry_run: bool = False
    seconds: float = 0.0
    seconds_saved: float | None = None
    usd: float | None = None
    usd_saved: float | None = None
    errors: int = 0

    @property
    def dropped(self) -> int:
        """Items of the edition before whose rows were not taken over: they were edited, had failed, or are gone."""
        return max(0, self.items_before - self.reused)

    def describe(self) -> str:
        """What it did, in a sentence."""
        if not self.changed:
            return f"Nothing has changed: edition {self.edition} has {count(self.items, 'item')}."
        would, has = ("would have", "to compute") if self.dry_run else ("has", "computed")
        failed = f", {self.errors:,} failed" if self.errors else ""
        return (
            f"Edition {self.edition} {would} {count(self.items, 'item')}, the one before has {self.items_before:,}: "
            f"{self.reused:,} reused, {self.computed:,} {has}{failed}{self._describe_savings()}."
        )

    def _describe_savings(self) -> str:
        said = ""
        if self.dry_run and self.seconds:
            said += f", about {duration(self.seconds)} of a device" + (
                "" if self.usd is None else f" (${self.usd:.2f})"
            )
        if self.seconds_saved:
            said += f", {duration(self.seconds_saved)} saved"
            said += "" if self.usd_saved is None else f" (${self.usd_saved:.2f})"
        return said

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "dropped": self.dropped}
