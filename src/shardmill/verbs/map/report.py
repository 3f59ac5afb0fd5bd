"""A map in a report: its points, clusters and their names, how far it can be trusted, and what it lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.console import count
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.run.reports.shape import Grid, Section
from shardmill.run.status.state import Status
from shardmill.store import Store

# What the last step of a map writes into its folder.
_FIGURES, _COORDINATES = "map.json", "coordinates.parquet"
_READ_ROWS = 65_536
_MOST_CLUSTERS = 30


@dataclass(frozen=True, slots=True)
class ClusterSizes:
    """One level of clusters: the points of each, the largest first, by its number and words; and those in none."""

    sizes: tuple[tuple[int, str, int], ...]
    noise: int


@dataclass(frozen=True, slots=True)
class MapAccount:
    """What a finished map says of itself: `figures` is its map.json, `levels` its clusters, the coarsest first."""

    rows: int
    figures: Mapping[str, Any]
    levels: tuple[ClusterSizes, ...]

    @property
    def points(self) -> int:
        return int(self.figures["points"])

    name: ClassVar[str] = "map"

    def headline(self) -> tuple[tuple[str, str], ...]:
        return map_figures(self)

    def section(self) -> Section:
        return describe_map(self)

    def to_json(self) -> dict[str, Any]:
        return {**self.figures, "rows": self.rows, "levels": [asdict(level) for level in self.levels]}


def read_map(ledger: Ledger, plan: Plan, status: Status) -> MapAccount | None:
    """What a map says of itself; None if it is not complete."""
    if status.state != "complete":
        return None
    try:
        figures = json.loads(ledger.store.get(_FIGURES))
        levels = tuple(_read_level(ledger.store, k + 1) for k in range(len(figures["clusters"])))
        made = MapAccount(status.rows, figures, levels)
        # A folder may say anything: what cannot be told is left out here, and the rest of the report stays.
        map_figures(made), describe_map(made)
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowException):
        return None
    return made


def _read_level(store: Store, level: int) -> ClusterSizes:
    number, name = f"cluster_{level}", f"cluster_name_{level}"
    sizes: Counter[tuple[int, str]] = Counter()
    noise = 0
    with store.reader(_COORDINATES) as data, pq.ParquetFile(data) as file:
        for batch in file.iter_batches(_READ_ROWS, columns=["x", number, name]):
            points = pa.table(batch.filter(batch.column("x").is_valid()))
            for row in points.group_by([number, name]).aggregate([([], "count_all")]).to_pylist():
                if row[number] is None:
                    noise += row["count_all"]
                else:
                    sizes[row[number], row[name] or ""] += row["count_all"]
    return ClusterSizes(tuple((at, words, size) for (at, words), size in sizes.most_common()), noise)


def map_figures(made: MapAccount) -> tuple[tuple[str, str], ...]:
    """What most readers want to know of a map, with names."""
    first = made.levels[:1]
    quality = made.figures["quality"]
    return (
        ("points", f"{made.points:,}"),
        ("clusters", " · ".join(f"{len(level.sizes):,}" for level in made.levels) or "none"),
        *(("in no cluster", f"{level.noise:,}") for level in first),
        *((("true neighbours kept", f"{quality['map']['kept']:.0%}"),) if quality else ()),
    )


def describe_map(made: MapAccount) -> Section:
    figures, quality = made.figures, made.figures["quality"]
    how, *notes = figures["notes"]
    facts = [("method", how.rstrip(".")), ("points", f"{made.points:,} of {count(made.rows, 'row')}")]
    if quality:
        others = [("PCA", quality["pca"]), ("chance", quality["chance"])]
        kept = ", ".join(f"{name}: {each['kept']:.1%}" for name, each in others)
        trust = ", ".join(f"{name}: {each['trust']:.3f}" for name, each in others)
        facts.append(("true neighbours kept", f"{quality['map']['kept']:.1%} of {quality['k']} ({kept})"))
        facts.append(("trustworthiness", f"{quality['map']['trust']:.3f} ({trust})"))
    facts += [(name.lower(), f"{total:,}") for name, total in figures["lists"].items()]
    return Section(
        "The map",
        tuple(facts),
        tuple(grid for grid in (_levels(made), _largest(made)) if grid.rows),
        notes=(*([quality["verdict"]] if quality else []), *notes),
    )


def _levels(made: MapAccount) -> Grid:
    rows = tuple(
        (str(number), f"{len(level.sizes):,}", f"{level.noise:,}", _share(level.noise, made))
        for number, level in enumerate(made.levels, 1)
    )
    return Grid(("level", "clusters", "points in none", "share"), rows, (0, 1, 2, 3))


def _largest(made: MapAccount) -> Grid:
    sizes = made.levels[0].sizes[:_MOST_CLUSTERS] if made.levels else ()
    rows = tuple((words or f"cluster {number}", f"{size:,}", _share(size, made)) for number, words, size in sizes)
    return Grid(("largest clusters of level 1", "points", "share"), rows, (1, 2))


def _share(points: int, made: MapAccount) -> str:
    return f"{points / max(1, made.points):.1%}"
