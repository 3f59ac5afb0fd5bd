"""What a migration did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardmill.results.comparison import Comparison


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did, or would do: the edition before, the new one, and whether it is read from now on.

    `made_before` says that an earlier command had completed the edition, so that this one computed nothing.
    `seconds` is its time, or what it would take of a device, and `usd` what that costs; None if that is not known.
    `comparison` is of both editions; `report` is the place of a page about it. `errors` are items that failed, which
    have no vector in the new edition; `errors_before` had none in the one before.
    """

    run: str
    before: int
    edition: int
    switched: bool
    items: int
    reused: int
    computed: int
    dry_run: bool = False
    seconds: float | None = None
    usd: float | None = None
    comparison: Comparison | None = None
    report: str = ""
    made_before: bool = False
    errors: int = 0
    errors_before: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
