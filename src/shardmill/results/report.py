"""The report of a verification, and what the caller expects of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, whether it passed, and what was seen."""

    name: str
    ok: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A shard whose items or rows are not what they must be, and the ids of some where they can be told.

    It is no `fault` if the rows of a database may have changed since.
    """

    shard: int
    what: str
    ids: tuple[str, ...] = ()
    fault: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """The proof of a run or a table; a run also keeps it in its folder as report.json.

    `differences` are the shards that differ from the source or from their commits, a thousand at most. `figures` are
    what the task measured of the result, such as ROUGE.
    """

    run: str
    plan: str
    verified: bool
    rows: int
    errors: int
    checks: tuple[Check, ...]
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the caller expects of the result: the number of rows and of dimensions."""

    rows: int | None = None
    dims: int | None = None

    def check(self, rows: int, dims: Collection[int]) -> list[Check]:
        """One check of what is expected; none if nothing is."""
        wrong, asked = [], []
        if self.rows is not None:
            asked.append(f"{self.rows:,} rows")
            wrong += [f"{rows:,} rows"] * (rows != self.rows)
        if self.dims is not None:
            asked.append(f"{self.dims:,} dimensions")
            there = ", ".join(f"{d:,}" for d in sorted(dims)) or "no"
            wrong += [f"{there} dimensions"] * (set(dims) != {self.dims})
        seen = ", ".join(asked) + (f" expected; {', '.join(wrong)} found" if wrong else ", as expected")
        return [Check("expected", not wrong, seen)] if asked else []
