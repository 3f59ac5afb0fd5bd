"""What an audit found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardmill.results.report import Check


@dataclass(frozen=True, slots=True)
class AuditCause:
    """Why rows are wrong: the cause, how many rows it explains, which, and what it takes to repair them.

    `share` is of all rows. `first` and `last` are the rows between which all are wrong, None if they are scattered.
    `again_s` is the time to embed them again on this machine, None if that is not needed.
    """

    name: str
    seen: str
    share: float
    rows: int
    first: int | None
    last: int | None
    remedy: str
    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit: what was looked at, and the causes of what is wrong. `right` if nothing is."""

    source: str
    right: bool
    rows: int
    dims: int
    stored: str
    checks: tuple[Check, ...]
    causes: tuple[AuditCause, ...]
    notes: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
