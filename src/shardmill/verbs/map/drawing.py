"""The last step of a map: clusters and their names, figures, lists, `coordinates.parquet` and `map.html`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.console import Bar, count
from shardmill.core.errors import UsageError
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import part_schema, read_rows
from shardmill.sinks.parquet import open_writer
from shardmill.sources import Fields
from shardmill.store import Store, replacing
from shardmill.verbs.map.clusters import Clusters, find_clusters
from shardmill.verbs.map.layout.anchors import Anchors
from shardmill.verbs.map.layout.fitting import FEWEST
from shardmill.verbs.map.layout.saved import load_anchors, read_fit
from shardmill.verbs.map.likeness import find_alike, read_codes
from shardmill.verbs.map.marks import place_marks
from shardmill.verbs.map.page import make_page
from shardmill.verbs.map.page_data import LAST_STEP, MapCluster, MapData, MapLevel, MapMark, MapQuality
from shardmill.verbs.map.quality import measure_quality
from shardmill.verbs.map.rows import MapRows, read_map_rows
from shardmill.verbs.map.vectors import VectorBatch, read_vectors

COORDINATES, PAGE, FIGURES = "coordinates.parquet", "map.html", "map.json"
_HIDDEN = ("anchors", "text_digest")
_FEW = f"Fitted on fewer than {FEWEST} different vectors: it is the plane of PCA."


def draw_map(ledger: Ledger, plan: Plan, *, quiet: bool = True) -> dict[str, Any]:
    """Write what a finished run of the `map` task leads to. Doing it again writes the same."""
    if plan.work.task != "map":
        raise UsageError(f"{ledger.url} is a run of the task {plan.work.task!r}, not of map.")
    anchors = load_anchors(plan.work.params["fit"])
    with Bar("drawing the map", quiet=quiet) as bar:
        drawing = _Drawing(ledger, plan, anchors, bar)
        return drawing.draw()


def read_figures(store: Store) -> dict[str, Any]:
    """What the page of a map says in numbers."""
    figures: dict[str, Any] = json.loads(store.get(FIGURES))
    return figures


class _Drawing:
    """One drawing: what its parts share."""

    def __init__(self, ledger: Ledger, plan: Plan, anchors: Anchors, bar: Bar) -> None:
        self._ledger, self._plan, self._anchors, self._bar = ledger, plan, anchors, bar

    def draw(self) -> dict[str, Any]:
        self._bar.at(0.02, "coordinates")
        places, near = self._read_places()
        self._bar.at(0.05, "clusters (its code is compiled the first time)")
        clusters = find_clusters(places)
        self._bar.at(0.2, "texts and columns")
        rows = read_map_rows(self._ledger, self._plan, clusters, lambda share: self._bar.at(0.2 + 0.2 * share, "texts"))
        codes = read_codes(
            self._read_vectors(), self._anchors, rows.points, lambda share: self._bar.at(0.4 + 0.15 * share, "vectors")
        )
        self._bar.at(0.55, "points that are alike")
        alike = find_alike(codes.codes, near, len(self._anchors.vectors))
        few = len(self._anchors.vectors) < FEWEST
        quality = None if few else measure_quality(self._read_again, places, codes.plane, self._anchors.seed)
        self._bar.at(0.85, COORDINATES)
        self._write_coordinates(clusters, rows)
        self._bar.at(0.95, PAGE)
        data = self._gather(places, clusters, rows, quality, alike)
        with replacing(PAGE, self._ledger.store) as file:
            make_page(data, file)
        figures = self._figures(data)
        self._ledger.store.put(FIGURES, json.dumps(figures, indent=1, ensure_ascii=False).encode())
        self._bar.at(1.0, f"{len(places):,} points")
        return {"points": len(places), "page": f"{self._ledger.url}/{PAGE}"}

    def _read_places(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """The places of all points, and the nearest anchors of each."""
        places, near = [np.zeros((0, 2), np.float32)], []
        for batch in read_rows(self._ledger, self._plan, ["x", "y", "anchors"]):
            there = batch.column("x").is_valid()
            kept = batch.filter(there)
            places.append(np.stack([kept.column(name).to_numpy() for name in ("x", "y")], axis=1))
            near.append(kept.column("anchors").flatten().to_numpy().reshape(kept.num_rows, -1))
        return np.concatenate(places), np.concatenate(near)

    def _read_vectors(self) -> Iterator[VectorBatch]:
        plan = self._plan
        return read_vectors(plan.stat, Fields.of(plan.work), plan.work.params["vector"], plan.shards)

    def _read_again(self, what: str) -> Iterator[VectorBatch]:
        for batch in self._read_vectors():
            self._bar.at(0.6 + 0.25 * batch.share, what)
            yield batch

    def _write_coordinates(self, clusters: Clusters, rows: MapRows) -> None:
        """The rows of the run with the cluster of each level and its name."""
        own = part_schema(self._ledger, self._plan)
        names = [name for name in own.names if name not in _HIDDEN]
        added = [
            pa.field(f"{what}_{level}", kind)
            for level in range(1, len(clusters.levels) + 1)
            for what, kind in (("cluster", pa.int32()), ("cluster_name", pa.string()))
        ]
        labels = [np.full(rows.count, -1, np.int32) for _ in clusters.levels]
        for all_rows, level in zip(labels, clusters.levels, strict=True):
            all_rows[rows.points] = level
        titles = [pa.array([*(" ".join(words) for words in level), None]) for level in rows.words]
        at = 0
        with replacing(COORDINATES, self._ledger.store) as file:
            schema = pa.schema([pa.field("row", pa.int64()), *(own.field(name) for name in names), *added])
            writer = open_writer(file, schema)
            for batch in read_rows(self._ledger, self._plan, names):
                columns = list(batch.columns)
                for all_rows, title in zip(labels, titles, strict=True):
                    part = all_rows[at : at + batch.num_rows]
                    columns += [pa.array(part, pa.int32(), mask=part < 0), title.take(pa.array(part % len(title)))]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
                at += batch.num_rows
            writer.close()

    def _gather(
        self,
        places: NDArray[np.float32],
        clusters: Clusters,
        rows: MapRows,
        quality: MapQuality | None,
        alike: NDArray[np.uint32],
    ) -> MapData:
        bounds, steps = _to_steps(places)
        fit = read_fit(self._plan.work.params["fit"])
        drawn = fit.anchors if fit.anchors < len(places) else len(places)
        method = fit.method if fit.anchors >= FEWEST else "PCA"
        of = f"{drawn:,} of {count(rows.count, 'row')}"
        how = f"{method} of {of} in {fit.dims:,} dimensions, seed {fit.seed}."
        few = [] if fit.anchors >= FEWEST else [_FEW]
        equal = ["All vectors are equal: they are one point."] if fit.anchors == 1 < len(places) else few
        levels = [
            MapLevel(
                tuple(_cluster(steps, labels == number, words) for number, words in enumerate(named)),
                clusters.of_cell[level],
            )
            for level, (labels, named) in enumerate(zip(clusters.levels, rows.words, strict=True))
        ]
        placed = place_marks(self._plan.work.params["fit"], self._anchors)
        marks = [MapMark(mark.name, *_step(place, bounds)) for mark, place in placed]
        return MapData(
            title=self._ledger.url.rstrip("/").rpartition("/")[2],
            source=", ".join(self._plan.work.source),
            count=len(places),
            bounds=bounds,
            x=steps[:, 0],
            y=steps[:, 1],
            cells=clusters.cells,
            levels=tuple(levels),
            columns=rows.columns,
            quality=quality,
            marks=tuple(marks),
            lists=rows.lists,
            notes=(how, *equal, *rows.notes),
            ids=lambda: iter(rows.ids),
            excerpts=lambda: iter(rows.excerpts),
            neighbours=alike,
            by_meaning=all(file.run for file in self._plan.stat.files),
        )

    def _figures(self, data: MapData) -> dict[str, Any]:
        """What the page says in numbers, for programs."""
        return {
            "points": data.count,
            "quality": asdict(data.quality) if data.quality is not None else None,
            "clusters": [len(level.clusters) for level in data.levels],
            "lists": {each.name: each.total for each in data.lists},
            "notes": data.notes,
        }


def _to_steps(places: NDArray[np.float32]) -> tuple[tuple[float, float, float], NDArray[np.uint16]]:
    """The square around all places, and the places in steps of it."""
    if not len(places):
        return (0.0, 0.0, 1.0), np.zeros((0, 2), np.uint16)
    low, high = places.min(axis=0).astype(np.float64), places.max(axis=0).astype(np.float64)
    side = float((high - low).max()) or 1.0
    left, lower = (low + high) / 2 - side / 2
    scaled = (places - np.array([left, lower])) * (LAST_STEP / side)
    return (float(left), float(lower), side), np.clip(np.rint(scaled), 0, LAST_STEP).astype(np.uint16)


def _step(place: NDArray[np.float32], bounds: tuple[float, float, float]) -> tuple[int, int]:
    """A place in steps of the square; one outside lies at its edge."""
    left, lower, side = bounds
    scaled = (place - np.array([left, lower])) * (LAST_STEP / side)
    x, y = np.clip(np.rint(scaled), 0, LAST_STEP).astype(int)
    return int(x), int(y)


def _cluster(steps: NDArray[np.uint16], inside: NDArray[np.bool_], words: tuple[str, ...]) -> MapCluster:
    """A cluster, whose label stands at the middle of its points."""
    x, y = np.median(steps[inside], axis=0)
    return MapCluster(words, int(x), int(y), int(inside.sum()))
