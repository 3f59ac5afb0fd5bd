"""What a proof says, and what may be asked of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, whether it holds, and what was seen."""

    name: str
    ok: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Report:
    """The proof of a run, also kept in its folder as report.json."""

    run: str
    plan: str
    verified: bool
    rows: int
    errors: int
    checks: tuple[Check, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the result must have, by the word of who asks: so many rows, of so many numbers each."""

    rows: int | None = None
    dims: int | None = None

    def check(self, rows: int, dims: Collection[int]) -> list[Check]:
        """One check for what was asked; none where nothing was."""
        wrong, asked = [], []
        if self.rows is not None:
            asked.append(f"{self.rows:,} rows")
            wrong += [f"{rows:,} rows are there"] * (rows != self.rows)
        if self.dims is not None:
            asked.append(f"{self.dims:,} numbers each")
            there = ", ".join(f"{d:,}" for d in sorted(dims)) or "no"
            wrong += [f"{there} numbers each are there"] * (set(dims) != {self.dims})
        seen = ", ".join(asked) + (f" were asked for; {', '.join(wrong)}" if wrong else ", as asked")
        return [Check("expected", not wrong, seen)] if asked else []
