"""Recipes: parts of an edition whose rows lie in parts of earlier editions, beside rows of their own.

A part with a recipe is read like any other: its rows come from where they are, in order. The recipe is in the footer,
which old versions never see, since they refuse runs with editions. Design: docs/design/editions.md
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

RECIPE = b"shardmill.recipe"
# Columns of the ranges: the part (0 is the part itself, the others count from 1), its first row there, how many rows
# follow, and what is added to the numbers of their items.
PART, FIRST, ROWS, SHIFT = range(4)

_EDITION = re.compile(r"(?P<run>.+)/editions/[0-9]{6}")
_KEY = re.compile(r"parts/[0-9]{6,}\.[\w-]+\.parquet")
# Readers see groups of this many rows, as if they were row groups.
_GROUP_ROWS = 2048
# Row groups of parts that are read are held up to here, for the ranges that follow.
_HELD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class PartName:
    """A part of an edition of the same run, and the size of a row in it."""

    edition: int
    key: str
    digest: str
    row_bytes: float

    def place(self, run: str) -> str:
        return f"{run}/{self.key}" if self.edition == 1 else f"{run}/editions/{self.edition:06d}/{self.key}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Ranges of rows, in order. In the column `numbered`, if there is one, rows have the numbers of their items."""

    parts: tuple[PartName, ...]
    ranges: NDArray[np.int64]
    numbered: str = ""

    @property
    def rows(self) -> int:
        return int(self.ranges[:, ROWS].sum())

    @property
    def own_rows(self) -> int:
        return int(self.ranges[self.ranges[:, PART] == 0, ROWS].sum())

    @property
    def borrowed_bytes(self) -> int:
        """About how many bytes its rows have in other parts."""
        sizes = np.array([0.0, *(part.row_bytes for part in self.parts)])
        return int((sizes[self.ranges[:, PART]] * self.ranges[:, ROWS]).sum())

    def encode(self) -> bytes:
        packed = base64.b64encode(zlib.compress(self.ranges.astype("<i8").tobytes())).decode()
        parts = [[part.edition, part.key, part.digest, part.row_bytes] for part in self.parts]
        return json.dumps({"parts": parts, "ranges": packed, "numbered": self.numbered}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Recipe:
        """The recipe that a part has; ValueError if it names what no run has."""
        try:
            said = json.loads(data)
            parts = tuple(PartName(int(e), str(key), str(digest), float(n)) for e, key, digest, n in said["parts"])
            ranges = np.frombuffer(zlib.decompress(base64.b64decode(said["ranges"])), "<i8").reshape(-1, 4)
            numbered = str(said["numbered"])
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise ValueError("its recipe cannot be read") from error
        if not all(part.edition > 0 and _KEY.fullmatch(part.key) for part in parts):
            raise ValueError("its recipe names no part")
        if (ranges[:, :SHIFT] < 0).any() or (ranges[:, PART] > len(parts)).any():
            raise ValueError("its recipe has ranges of no part")
        return cls(parts, ranges.astype(np.int64), numbered)

    def named(self) -> Recipe:
        """With those parts alone that it has rows of."""
        used = np.unique(self.ranges[:, PART])
        used = used[used > 0]
        places = np.zeros(len(self.parts) + 1, np.int64)
        places[used] = np.arange(1, len(used) + 1)
        ranges = self.ranges.copy()
        ranges[:, PART] = places[ranges[:, PART]]
        return replace(self, parts=tuple(self.parts[i - 1] for i in used), ranges=ranges)


def as_ranges(parts: NDArray[np.int64], rows: NDArray[np.int64], shifts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Consecutive rows as ranges: of each row its part, its place there, and what is added to its item's number.

    >>> as_ranges(np.array([1, 1, 0]), np.array([7, 8, 0]), np.zeros(3, np.int64)).tolist()
    [[1, 7, 2, 0], [0, 0, 1, 0]]
    """
    if not len(parts):
        return np.zeros((0, 4), np.int64)
    follows = (parts[1:] == parts[:-1]) & (rows[1:] == rows[:-1] + 1) & (shifts[1:] == shifts[:-1])
    starts = np.concatenate([[0], np.flatnonzero(~follows) + 1])
    counts = np.diff(np.append(starts, len(parts)))
    return np.stack([parts[starts], rows[starts], counts, shifts[starts]], axis=1)


class RecipeBuilder:
    """Joins the recipes of consecutive rows, each with as many own rows as were written for it."""

    def __init__(self) -> None:
        self._parts: dict[PartName, int] = {}
        self._ranges: list[NDArray[np.int64]] = []
        self._own = 0
        self._numbered = ""

    def add(self, recipe: Recipe | None, own_rows: int) -> None:
        """The next rows; without a recipe, these are own rows alone."""
        if recipe is None:
            self._ranges.append(np.array([[0, self._own, own_rows, 0]], np.int64))
        else:
            places = [0, *(self._parts.setdefault(part, len(self._parts) + 1) for part in recipe.parts)]
            ranges = recipe.ranges.copy()
            ranges[:, PART] = np.array(places, np.int64)[ranges[:, PART]]
            ranges[ranges[:, PART] == 0, FIRST] += self._own
            self._ranges.append(ranges)
            self._numbered = recipe.numbered
        self._own += own_rows

    def make(self) -> Recipe | None:
        """The recipe of all rows; None if none is borrowed."""
        if not self._parts:
            return None
        ranges = np.concatenate(self._ranges)
        ranges = ranges[ranges[:, ROWS] > 0]
        follows = (ranges[1:, PART] == ranges[:-1, PART]) & (ranges[1:, SHIFT] == ranges[:-1, SHIFT])
        follows &= ranges[1:, FIRST] == ranges[:-1, FIRST] + ranges[:-1, ROWS]
        starts = np.concatenate([[0], np.flatnonzero(~follows) + 1]).astype(np.int64)
        joined = ranges[starts] if len(ranges) else ranges
        if len(ranges):
            joined[:, ROWS] = np.add.reduceat(ranges[:, ROWS], starts)
        return Recipe(tuple(self._parts), joined, self._numbered)


def find_recipe(opened: pq.ParquetFile) -> Recipe | None:
    """The recipe in the footer of a part, if it has one."""
    said = opened.metadata.metadata
    return Recipe.decode(said[RECIPE]) if said is not None and RECIPE in said else None


def run_of(place: str) -> str:
    """The run that a part belongs to, whichever edition it is in.

    >>> run_of("runs/a/editions/000002/parts/000000.x.parquet")
    'runs/a'
    """
    folder = place.rpartition("/parts/")[0]
    found = _EDITION.fullmatch(folder)
    return found["run"] if found is not None else folder


OpenPart = Callable[[ExitStack, str, str], pq.ParquetFile]


class ComposedPart:
    """A part with a recipe, with what its readers ask of a `pq.ParquetFile`.

    `open_named` opens a part by its place and digest, until the stack is closed.
    """

    def __init__(self, own: pq.ParquetFile, run: str, recipe: Recipe, open_named: OpenPart) -> None:
        self._own, self._run, self._recipe, self._open_named = own, run, recipe, open_named
        self._stack = ExitStack()
        self._opened: dict[int, pq.ParquetFile] = {0: own}
        self._stops = np.cumsum(recipe.ranges[:, ROWS])
        self.schema = own.schema
        self.schema_arrow = own.schema_arrow.remove_metadata()
        self.metadata = _Footer(self)

    @property
    def num_rows(self) -> int:
        return self._recipe.rows

    def iter_batches(
        self,
        batch_size: int = 65536,
        row_groups: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        use_threads: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        rows = _Rows(self._part, columns, use_threads)
        step = min(batch_size, _GROUP_ROWS)
        for group in range(self.metadata.num_row_groups) if row_groups is None else row_groups:
            start, stop = self.metadata.span(group)
            for at in range(start, stop, step):
                yield from self._compose(rows, at, min(stop, at + step)).to_batches()

    def read(self, columns: Sequence[str] | None = None, use_threads: bool = True) -> pa.Table:
        batches = [*self.iter_batches(columns=columns, use_threads=use_threads)]
        return pa.Table.from_batches(batches, None if batches else self._selected(columns)).combine_chunks()

    def read_row_group(self, group: int, columns: Sequence[str] | None = None, use_threads: bool = True) -> pa.Table:
        batches = [*self.iter_batches(row_groups=[group], columns=columns, use_threads=use_threads)]
        return pa.Table.from_batches(batches, None if batches else self._selected(columns))

    def take(self, rows: NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at these places, which are in order. Nothing is read but the row groups that they lie in."""
        source = _Rows(self._part, columns, threads=False)
        ends = np.flatnonzero(np.diff(rows, append=rows[-1] + 2) != 1)
        starts = np.concatenate([[0], ends[:-1] + 1])
        spans = zip(rows[starts].tolist(), (rows[ends] + 1).tolist(), strict=True)
        return pa.concat_tables([self._compose(source, *span) for span in spans]).combine_chunks()

    def _selected(self, columns: Sequence[str] | None) -> pa.Schema:
        names = self.schema_arrow.names if columns is None else columns
        return pa.schema([field for field in self.schema_arrow if field.name in names])

    def _compose(self, rows: _Rows, start: int, stop: int) -> pa.Table:
        """The rows from `start` to `stop` of the whole, one chunk a column."""
        whole = np.arange(start, stop)
        at = np.searchsorted(self._stops, whole, "right")
        ranges = self._recipe.ranges[at]
        places = ranges[:, FIRST] + whole - (self._stops[at] - ranges[:, ROWS])
        found, order = [], []
        for part in np.unique(ranges[:, PART]).tolist():
            mine = np.flatnonzero(ranges[:, PART] == part)
            for taken, table in rows.take(part, places[mine]):
                found.append(table)
                order.append(mine[taken])
        made = pa.concat_tables(found)
        if len(found) > 1:
            made = made.take(pa.array(np.argsort(np.concatenate(order))))
        return _shifted(made.combine_chunks(), self._recipe.numbered, ranges[:, SHIFT])

    def _part(self, part: int) -> pq.ParquetFile:
        if part not in self._opened:
            name = self._recipe.parts[part - 1]
            self._opened[part] = self._open_named(self._stack, name.place(self._run), name.digest)
        return self._opened[part]

    def column_bytes(self) -> list[tuple[str, float, float]]:
        """Of each stored column, its path and the bytes of a row of it, compressed and not, as far as that is known."""
        named = np.bincount(self._recipe.ranges[:, PART], self._recipe.ranges[:, ROWS])
        footer = self._part(int(named.argmax())).metadata
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        rows, found = max(1, footer.num_rows), []
        for i in range(footer.num_columns):
            columns = [group.column(i) for group in groups]
            sizes = (sum(getattr(c, f"total_{kind}_size") for c in columns) for kind in ("compressed", "uncompressed"))
            path = self.schema.column(i).path
            found.append((path, *(size / rows for size in sizes)))
        return found

    def close(self) -> None:
        self._stack.close()
        self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Rows:
    """Reads ranges of rows of parts; the row groups that were read last are held."""

    def __init__(self, open_part: Callable[[int], pq.ParquetFile], columns: Sequence[str] | None, threads: bool):
        self._open, self._threads = open_part, threads
        self._columns = None if columns is None else list(columns)
        self._starts: dict[int, NDArray[np.int64]] = {}
        self._held: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def take(self, part: int, places: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        """The rows at these places of a part, by its row groups: which of them, and the rows."""
        if part not in self._starts:
            footer = self._open(part).metadata
            sizes = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
            self._starts[part] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        starts = self._starts[part]
        if len(places) and places.max() >= starts[-1]:
            raise ValueError("its recipe has more rows than a part that it names")
        groups = np.searchsorted(starts, places, "right") - 1
        for group in np.unique(groups).tolist():
            mine = np.flatnonzero(groups == group)
            yield mine, self._group(part, group).take(pa.array(places[mine] - starts[group]))

    def _group(self, part: int, group: int) -> pa.Table:
        if (part, group) not in self._held:
            table = self._open(part).read_row_group(group, self._columns, use_threads=self._threads)
            self._held[part, group] = table.replace_schema_metadata(None)
            size = sum(held.nbytes for held in self._held.values())
            while len(self._held) > 1 and size > _HELD_BYTES:
                size -= self._held.popitem(last=False)[1].nbytes
        self._held.move_to_end((part, group))
        return self._held[part, group]


class _Footer:
    """What the footer of a composed part would say: groups of rows, and about how large their columns are."""

    def __init__(self, part: ComposedPart) -> None:
        self._part = part
        self.num_rows = part.num_rows
        self.num_row_groups = -(-self.num_rows // _GROUP_ROWS)
        self.num_columns = len(part.schema)
        self._columns: list[tuple[str, float, float]] = []

    def span(self, group: int) -> tuple[int, int]:
        return group * _GROUP_ROWS, min(self.num_rows, (group + 1) * _GROUP_ROWS)

    def row_group(self, group: int) -> _Group:
        start, stop = self.span(group)
        return _Group(stop - start, self.num_columns, self.column_bytes)

    def column_bytes(self) -> list[tuple[str, float, float]]:
        self._columns = self._columns or self._part.column_bytes()
        return self._columns


@dataclass(frozen=True, slots=True)
class _Group:
    num_rows: int
    num_columns: int
    _column_bytes: Callable[[], list[tuple[str, float, float]]]

    def column(self, at: int) -> _Column:
        path, compressed, plain = self._column_bytes()[at]
        return _Column(path, int(compressed * self.num_rows), int(plain * self.num_rows))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a group. Nothing is known of its values, so any group may have any."""

    path_in_schema: str
    total_compressed_size: int
    total_uncompressed_size: int
    is_stats_set = False


def _shifted(table: pa.Table, numbered: str, shifts: NDArray[np.int64]) -> pa.Table:
    if numbered not in table.column_names or not shifts.any():
        return table
    at = table.column_names.index(numbered)
    return table.set_column(at, table.schema.field(at), pc.add(table.column(at), pa.array(shifts)))
