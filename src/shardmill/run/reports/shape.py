"""What a section of a report consists of, before any format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. The columns in `numbers` are set to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Values over labelled places, as a line or as bars; the labels of the first and the last place are shown."""

    title: str
    values: tuple[float, ...]
    labels: tuple[str, ...]
    bars: bool = False
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Points:
    """Values over places, each a point; `line` has a value per point too. With `labels`, places are their numbers."""

    title: str
    places: tuple[float, ...]
    values: tuple[float, ...]
    line: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    log: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it, in this order."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    grids: tuple[Grid, ...] = ()
    charts: tuple[Chart, ...] = ()
    points: tuple[Points, ...] = ()
    notes: tuple[str, ...] = ()


class OwnAccount(Protocol):
    """What a verb tells of its own runs in a report: the figures that most readers want, and a section of its own."""

    @property
    def name(self) -> str:
        """Its key in the report as JSON."""
        ...

    def headline(self) -> tuple[tuple[str, str], ...]:
        """Figures with their names, in place of rows and rates; none to leave those."""
        ...

    def section(self) -> Section: ...
    def to_json(self) -> dict[str, Any]: ...
