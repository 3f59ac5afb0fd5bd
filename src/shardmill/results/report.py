"""The report of a verification, and what the caller expects of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from shardmill.results.bad import BadRow


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, whether it passed, what was seen, and the first rows that are wrong, with their ids.

    Where a shard is wrong and no row can be told, the shard stands for it.
    """

    name: str
    ok: bool
    seen: str
    rows: tuple[BadRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The proof of a run or a table; a run also keeps it in its folder as report.json.

    `figures` are what the task measured of the result, such as ROUGE.
    """

    run: str
    plan: str
    verified: bool
    rows: int
    errors: int
    checks: tuple[Check, ...]
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values; a check has `rows` only if it names some."""
        made = asdict(self)
        made["checks"] = [{name: v for name, v in check.items() if name != "rows" or v} for check in made["checks"]]
        return made


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
