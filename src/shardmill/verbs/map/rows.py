"""All that is read of a map's rows besides their places: texts, ids, kept columns, and the lists made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.console import clean, count
from shardmill.ledger import Ledger
from shardmill.plan import RUN, Plan
from shardmill.results.merge import part_schema, read_rows
from shardmill.verbs.map.clusters import Clusters
from shardmill.verbs.map.columns import MOST_CATEGORIES, ColumnCodes, is_shown
from shardmill.verbs.map.lists import find_twins, list_duplicates, list_outliers, list_rows
from shardmill.verbs.map.naming import ClusterWords
from shardmill.verbs.map.page_data import BLOCK_POINTS, Blocks, MapColumn, MapList
from shardmill.verbs.map.texts import RowTexts, TextBatch, count_rows

_ID_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class MapRows:
    """What was read: `points` are the rows that have a place, `words` those of each cluster of each level."""

    count: int
    points: NDArray[np.int64]
    words: list[list[tuple[str, ...]]]
    columns: tuple[MapColumn, ...]
    lists: tuple[MapList, ...]
    notes: tuple[str, ...]
    ids: list[bytes]
    excerpts: list[bytes]


def read_map_rows(ledger: Ledger, plan: Plan, clusters: Clusters, on_progress: Callable[[float], None]) -> MapRows:
    """Read the rows of a map once, beside their texts."""
    reading = _Reading(ledger, plan, clusters)
    while (share := reading.step()) < 1:
        on_progress(share)
    return reading.finish()


class _Reading:
    def __init__(self, ledger: Ledger, plan: Plan, clusters: Clusters) -> None:
        self._plan, self._clusters = plan, clusters
        self._count = count_rows(ledger, plan)
        schema = part_schema(ledger, plan)
        shown = [f for f in schema if f.name in plan.kept and f.name not in plan.work.id and is_shown(f.type)]
        self._codes = [ColumnCodes(field.name, field.type) for field in shown]
        names = dict.fromkeys(["x", "distance", *plan.work.id, *(field.name for field in shown)])
        self._batches = read_rows(ledger, plan, list(names))
        self._texts = RowTexts(ledger, plan)
        self._text_batches = self._texts.read_safely(self._count)
        self._left = TextBatch([], [])
        self._words = ClusterWords()
        self._ids, self._excerpts = Blocks(), Blocks()
        self._row = self._point = 0
        self._points: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self._distances: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        self._digests: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self._starts: dict[int, str] = {}
        self._empty: list[tuple[int, str, int | None]] = []
        self._placeless: list[tuple[int, str]] = []

    def step(self) -> float:
        """Read one batch; returns the share that was read, 1 at the end."""
        batch = next(self._batches, None)
        if batch is None:
            return 1.0
        excerpts, digests = self._take(batch.num_rows)
        there = batch.column("x").is_valid().to_numpy(zero_copy_only=False)
        ids = self._name(batch)
        self._look(ids, excerpts, there)
        kept = batch.filter(pa.array(there))
        for codes in self._codes:
            codes.add(kept.column(codes.name))
        placed = np.flatnonzero(there)
        texts = [excerpts[i] or "" for i in placed]
        own = slice(self._point, self._point + len(placed))
        self._words.add(self._clusters.cells[own].tolist(), texts)
        self._ids.add([ids[i] for i in placed])
        self._excerpts.add([clean(text) for text in texts])
        self._points.append(self._row + placed)
        self._distances.append(kept.column("distance").to_numpy())
        # Texts that are missing equal no other: each has its row as its digest.
        self._digests.append(np.array([self._row + i if digests[i] is None else digests[i] for i in placed], np.int64))
        self._row += batch.num_rows
        self._point += len(placed)
        return min(0.999, self._row / max(1, self._count))

    def _take(self, count: int) -> tuple[list[str | None], list[int | None]]:
        excerpts, digests = self._left.excerpts, self._left.digests
        while len(excerpts) < count:
            more = next(self._text_batches)
            excerpts, digests = excerpts + more.excerpts, digests + more.digests
        self._left = TextBatch(excerpts[count:], digests[count:])
        return excerpts[:count], digests[:count]

    def _name(self, batch: pa.RecordBatch) -> list[str]:
        """The id of each row as text: the values of its id columns, or its number."""
        columns = [batch.column(name).to_pylist() for name in self._plan.work.id]
        if not columns:
            return [str(row) for row in range(self._row, self._row + batch.num_rows)]
        return [clean(",".join(map(str, each)))[:_ID_CHARACTERS] for each in zip(*columns, strict=True)]

    def _look(self, ids: list[str], excerpts: list[str | None], there: NDArray[np.bool_]) -> None:
        """Note rows without a text, and rows without a place."""
        numbers = self._point + np.cumsum(there) - 1
        for i, text in enumerate(excerpts):
            if not self._texts.missing and not (text or "").strip():
                self._empty.append((self._row + i, ids[i], int(numbers[i]) if there[i] else None))
        self._placeless += [(self._row + i, ids[i]) for i in np.flatnonzero(~there).tolist()]

    def finish(self) -> MapRows:
        distances, digests = np.concatenate(self._distances), np.concatenate(self._digests)
        blocks = _Shown(self._excerpts.finish() if not self._texts.missing else self._ids.finish())
        columns = [codes.finish() for codes in self._codes]
        lists = [list_outliers(distances, blocks), list_duplicates(find_twins(digests), blocks)]
        rows, ids, points = zip(*self._empty, strict=True) if self._empty else ((), (), ())
        lists.append(list_rows("Empty texts", rows, ids, points, "no text"))
        bare_rows, bare = zip(*self._placeless, strict=True) if self._placeless else ((), ())
        if bare:
            lists.append(list_rows("Without a place", bare_rows, bare, [None] * len(bare), "no vector"))
        return MapRows(
            count=self._count,
            points=np.concatenate(self._points),
            words=self._words.name(self._clusters),
            columns=tuple(column for column in (*self._runs(), *columns) if column is not None),
            lists=tuple(lists),
            notes=tuple(self._notes(columns)),
            ids=self._ids.finish(),
            excerpts=self._excerpts.finish(),
        )

    def _runs(self) -> list[MapColumn]:
        """Which run each point is of, if the map shows several."""
        places = [place.removeprefix(RUN) for place in self._plan.work.source if place.startswith(RUN)]
        if len(places) < 2:
            return []
        codes = ColumnCodes("run", pa.string())
        ends = np.cumsum([count_rows(ledger, ledger.plan()) for ledger in map(Ledger, places)])
        names = [place.rstrip("/").rpartition("/")[2] for place in places]
        points = np.concatenate(self._points)
        codes.add(pa.array([names[i] for i in np.searchsorted(ends, points, side="right")], pa.string()))
        column = codes.finish()
        return [column] if column is not None else []

    def _notes(self, columns: list[MapColumn | None]) -> list[str]:
        notes = [self._texts.missing] if self._texts.missing else []
        if self._placeless:
            rows = count(len(self._placeless), "row")
            notes.append(f"{rows} without a place: no vector, or one without a direction.")
        left_out = [codes.name for codes, column in zip(self._codes, columns, strict=True) if column is None]
        if left_out:
            why = f"no values, more than {MOST_CATEGORIES:,}, or as many as rows"
            notes.append(f"No colour: {', '.join(map(clean, left_out))} ({why}).")
        return notes


class _Shown(list[str]):
    """Strings of points by number, unpacked block by block as they are asked for."""

    def __init__(self, blocks: list[bytes]) -> None:
        super().__init__()
        self._blocks = blocks
        self._open: tuple[int, list[str]] = (-1, [])

    def __getitem__(self, number: int) -> str:  # type: ignore[override]
        from shardmill.verbs.map.page_data import unpack

        block, at = divmod(int(number), BLOCK_POINTS)
        if self._open[0] != block:
            self._open = block, unpack(self._blocks[block])
        return self._open[1][at]
