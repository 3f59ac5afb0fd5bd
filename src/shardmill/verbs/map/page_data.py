"""What the page of a map is made from: arrays of one entry per point, names, lists, and texts in compressed blocks.

The page shows only points, rows that have a place. A point's number is its position in every array, and points stand
in source order. `page.make_page(data, file)` writes the page into a binary file, block by block, so that a million
texts are never held.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

BLOCK_POINTS = 512
# Codes of a column's values, one byte each: 0 to 253 are values, and two say why there is none.
MOST_CODES = 254
OTHER, NULL = 254, 255
# The last step of a coordinate: 0 is the left or lower edge of the map's square, this the right or upper one.
LAST_STEP = 65_535


@dataclass(frozen=True, slots=True)
class MapCluster:
    """One cluster of a level: its words, the most telling first, where its label stands, and its number of points."""

    words: tuple[str, ...]
    x: int
    y: int
    size: int


@dataclass(frozen=True, slots=True)
class MapLevel:
    """One level of clusters, the coarsest first. `of_cell` has the cluster of each cell, -1 where it is in none."""

    clusters: tuple[MapCluster, ...]
    of_cell: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class MapColumn:
    """A kept column, to colour and to filter by. `codes` has one byte per point.

    number, time: the value lies at `low + code / 253 * (high - low)`; a time is in seconds since 1970, in UTC. NULL
    where there is none, never OTHER. category: the code is the position in `labels`, the most frequent first; OTHER is
    a value that is not among them. `counts` has the number of points with each of the 256 codes.
    """

    name: str
    kind: Literal["number", "time", "category"]
    codes: NDArray[np.uint8]
    counts: tuple[int, ...]
    low: float = 0.0
    high: float = 0.0
    labels: tuple[str, ...] = ()
    categories: int = 0
    """The number of different values, of which `labels` has at most 254."""

    values: tuple[bytes, ...] = ()
    """The values as texts, in blocks as those of `ids`; none if `labels` have all of them."""


@dataclass(frozen=True, slots=True)
class MapMark:
    """A given text, such as a question, where it would lie on the map."""

    name: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class MapFigures:
    """How far a layout can be trusted, both from 0 to 1: neighbours on the map that are true ones, weighted by rank
    (`trust`), and the share of true neighbours that are neighbours on the map (`kept`).
    """

    trust: float
    kept: float


@dataclass(frozen=True, slots=True)
class MapQuality:
    """The map's figures beside those of PCA and of chance, of `rows` rows against all, with `k` neighbours."""

    rows: int
    k: int
    map: MapFigures
    pca: MapFigures
    chance: MapFigures
    verdict: str
    """One sentence to print on the map."""

    warns: bool
    """Whether the picture means little: it is no better than PCA."""


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One entry of a list: what it says, and its points, which may be none, one, or those that are duplicates."""

    text: str
    points: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class MapList:
    """A list beside the map: outliers, duplicates, empty texts. `total` counts those that are not shown too."""

    name: str
    total: int
    entries: tuple[ListEntry, ...]


@dataclass(frozen=True, slots=True)
class MapData:
    """All that the page shows.

    `bounds` are the left and lower edge and the side of the square in which `x` and `y` count 65,536 steps. `cells`
    has a number for each point that stands for its clusters on all levels. `neighbours` has the points most like each
    point, the nearest first, and its own number where there are fewer; None if they were not kept. `ids` and
    `excerpts` give blocks of `BLOCK_POINTS` points in order, made by `pack`; they can be called again.
    """

    title: str
    source: str
    count: int
    bounds: tuple[float, float, float]
    x: NDArray[np.uint16]
    y: NDArray[np.uint16]
    cells: NDArray[np.uint16]
    levels: tuple[MapLevel, ...]
    columns: tuple[MapColumn, ...]
    """The first is the default colour; empty if no column was kept, and the clusters then give the colour."""

    quality: MapQuality | None
    """None for a map that is too small to be measured."""

    marks: tuple[MapMark, ...]
    lists: tuple[MapList, ...]
    notes: tuple[str, ...]
    """Sentences about how the map was made and what is not on it."""

    ids: Callable[[], Iterator[bytes]]
    excerpts: Callable[[], Iterator[bytes]]
    neighbours: NDArray[np.uint32] | None = None
    by_meaning: bool = False
    """Whether the monitor could search the points by meaning: they are rows of runs."""


def pack(texts: Sequence[str | None]) -> bytes:
    """One block: a JSON list of strings in UTF-8, compressed for a browser's DecompressionStream('deflate-raw')."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    plain = json.dumps(list(texts), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return squeeze.compress(plain) + squeeze.flush()


class Blocks:
    """Strings on their way into compressed blocks."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._waiting: list[str | None] = []

    def add(self, texts: Sequence[str | None]) -> None:
        self._waiting += texts
        while len(self._waiting) >= BLOCK_POINTS:
            self._blocks.append(pack(self._waiting[:BLOCK_POINTS]))
            self._waiting = self._waiting[BLOCK_POINTS:]

    def finish(self) -> list[bytes]:
        if self._waiting:
            self._blocks.append(pack(self._waiting))
            self._waiting = []
        return self._blocks


def unpack(block: bytes) -> list[Any]:
    """The strings of a block."""
    return list(json.loads(zlib.decompress(block, -zlib.MAX_WBITS)))


def pack_all(texts: Sequence[str]) -> list[bytes]:
    """The blocks of all points' strings."""
    return [pack(texts[i : i + BLOCK_POINTS]) for i in range(0, len(texts), BLOCK_POINTS)]
