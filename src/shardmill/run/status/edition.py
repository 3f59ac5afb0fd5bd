"""Which edition of a run is read, and how its refreshes go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EditionState:
    """Which edition of a run is read, made when, and how its refreshes go.

    At `fresh_at` it was last known to be what the source holds; since `behind_since` the source is known to be newer.
    `failures` counts refreshes that failed in a row, the last one at `failed_at` with an `error`. The edition `next`
    was begun and is not read yet, 0 if there is none; `next_state` is its state, `next_share` how much of it is done.
    """

    edition: int
    made_at: float | None = None
    fresh_at: float | None = None
    behind_since: float | None = None
    failures: int = 0
    failed_at: float | None = None
    error: str = ""
    next: int = 0
    next_state: str = ""
    next_share: float = 0.0

    def behind_s(self, now: float) -> float:
        """For how long the source has been known to be newer; 0 if it is not. A clock may run backwards."""
        return 0.0 if self.behind_since is None else max(0.0, now - self.behind_since)
