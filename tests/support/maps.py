"""Maps that were never computed: points in nested clusters, with texts, columns and neighbours, of any number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.verbs.map.page import make_page
from shardmill.verbs.map.page_data import (
    BLOCK_POINTS,
    LAST_STEP,
    ListEntry,
    MapCluster,
    MapColumn,
    MapData,
    MapFigures,
    MapLevel,
    MapList,
    MapMark,
    MapQuality,
    pack,
)

# Words of a shop's reviews: a subject, and the parts of it that people write about.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "phone": ("battery", "screen", "camera", "charger", "signal"),
    "kitchen": ("blender", "kettle", "knife", "oven", "toaster"),
    "shoes": ("sole", "laces", "size", "leather", "heel"),
    "music": ("guitar", "strings", "amplifier", "drums", "piano"),
    "book": ("chapter", "author", "cover", "ending", "translation"),
    "garden": ("seeds", "hose", "mower", "roses", "soil"),
    "toys": ("puzzle", "doll", "bricks", "train", "robot"),
    "travel": ("suitcase", "wheels", "zipper", "backpack", "pillow"),
    "pets": ("leash", "litter", "aquarium", "collar", "treats"),
    "office": ("printer", "ink", "desk", "chair", "stapler"),
    "sports": ("racket", "helmet", "bicycle", "tent", "weights"),
}
_ADJECTIVES = ("good", "broken", "cheap", "lovely", "late", "sturdy", "noisy", "small", "bright", "heavy")
_FAMILY = ("sister", "father", "friend", "neighbour", "son", "aunt")
_QUESTIONS = ("Does the battery last?", "Which tent is light?", "Is the ink dear?")
_SAID = "I bought this {0} for my {1} last month: the {2} is {3}, the {4} rather {5}, and it arrived {6}. {7}"


def make_map(n: int, *, texts: dict[int, str] | None = None, warns: bool = False, seed: int = 0) -> MapData:
    """A map of `n` points. `texts` replaces the excerpts of some."""
    rng = np.random.default_rng(seed)
    names = list(SUBJECTS)
    coarse = rng.choice(len(names), n, p=_shares(len(names), rng)).astype(np.int32)
    fine = coarse * 5 + rng.integers(0, 5, n, dtype=np.int32)
    noise = rng.random(n) < 0.04
    places = _places(coarse, fine, noise, rng)
    low, side = places.min(axis=0), float(np.ptp(places, axis=0).max()) or 1.0
    steps = np.round((places - low) / side * LAST_STEP).astype(np.uint16)
    cells = np.where(noise, 5 * len(names), fine).astype(np.uint16)
    levels = tuple(_level(steps, cells, of, kind) for of, kind in ((5, "coarse"), (1, "fine")))
    said = _Excerpts(n, fine, texts or {})
    better = MapFigures(0.81, 0.13) if warns else MapFigures(0.94, 0.37)
    far = [int(i) for i in np.flatnonzero(noise)[:12]]
    return MapData(
        title="Reviews of a shop",
        source="runs/reviews, all-MiniLM-L6-v2, 384 dimensions",
        count=n,
        bounds=(float(low[0]), float(low[1]), side),
        x=steps[:, 0].copy(),
        y=steps[:, 1].copy(),
        cells=cells,
        levels=levels,
        columns=_columns(n, coarse, fine, rng),
        quality=MapQuality(
            rows=min(n, 2000),
            k=15,
            map=better,
            pca=MapFigures(0.82, 0.14),
            chance=MapFigures(0.5, min(1.0, 15 / n)),
            verdict="The map keeps no more neighbours than PCA: it means little."
            if warns
            else "The map keeps 37 of 100 true neighbours, PCA 14.",
            warns=warns,
        ),
        marks=tuple(
            MapMark(name, int(steps[at, 0]), int(steps[at, 1]))
            for name, at in zip(_QUESTIONS, _inner(cells), strict=True)
            if at >= 0
        ),
        lists=(
            MapList("Outliers", 3 * len(far), tuple(ListEntry(said[i], (i,), "far from all others") for i in far)),
            MapList("Duplicates", 1, (ListEntry(said[0], tuple(range(min(n, 3))), "3 times"),)),
            MapList("Empty texts", 0, ()),
        ),
        notes=("UMAP, fitted on 20,000 rows, seed 0.", "12 rows had no vector and are not on the map."),
        ids=said.ids,
        excerpts=said.blocks,
        neighbours=_neighbours(cells, rng),
    )


def write_map(path: Path, data: MapData) -> Path:
    with path.open("wb") as file:
        make_page(data, file)
    return path


class _Excerpts:
    """Texts that are made when they are asked for, so that a million of them need no memory."""

    def __init__(self, n: int, fine: NDArray[np.int32], given: dict[int, str]) -> None:
        self._n, self._fine, self._given = n, fine, given

    def __getitem__(self, i: int) -> str:
        if i in self._given:
            return self._given[i]
        subject = list(SUBJECTS)[self._fine[i] // 5]
        parts = SUBJECTS[subject]
        words = [_ADJECTIVES[(i * step + step) % len(_ADJECTIVES)] for step in (3, 7, 11, 13)]
        part, other = parts[self._fine[i] % 5], parts[(self._fine[i] + 1 + i % 4) % 5]
        order = f"Order {i * 7919 % 99991}."
        return _SAID.format(subject, _FAMILY[i % 6], part, words[0], other, words[1], words[2], order)

    def blocks(self) -> Iterator[bytes]:
        for start in range(0, self._n, BLOCK_POINTS):
            yield pack([self[i] for i in range(start, min(start + BLOCK_POINTS, self._n))])

    def ids(self) -> Iterator[bytes]:
        for start in range(0, self._n, BLOCK_POINTS):
            yield pack([f"r{i}" for i in range(start, min(start + BLOCK_POINTS, self._n))])


def _shares(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    weights = rng.uniform(0.5, 1.6, n)
    return np.asarray(weights / weights.sum())


def _places(
    coarse: NDArray[np.int32], fine: NDArray[np.int32], noise: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Groups on a ring and inside it, each of smaller ones that are bent and stretched."""
    n, groups = len(coarse), len(SUBJECTS)
    angle = np.arange(groups) * 2.399963
    centre = np.stack([np.cos(angle), np.sin(angle)], axis=1) * (1.9 * np.sqrt(np.arange(groups) + 0.6))[:, None]
    turn = np.arange(5 * groups) * 1.2566 + np.repeat(rng.uniform(0, 6, groups), 5)
    inner = np.stack([np.cos(turn), np.sin(turn)], axis=1) * rng.uniform(0.55, 1.05, 5 * groups)[:, None]
    width, lean = rng.uniform(0.12, 0.34, (5 * groups, 2)), rng.uniform(0, 3.14, 5 * groups)
    spread = rng.standard_normal((n, 2)) * width[fine]
    spread[:, 1] += 1.4 * (spread[:, 0] ** 2 - width[fine, 0] ** 2) * np.sign(np.sin(7 * lean[fine]))
    cos, sin = np.cos(lean[fine]), np.sin(lean[fine])
    turned = np.stack([spread[:, 0] * cos - spread[:, 1] * sin, spread[:, 0] * sin + spread[:, 1] * cos], axis=1)
    places = centre[coarse] + inner[fine] + turned
    places[noise] += rng.standard_normal((int(noise.sum()), 2)) * 1.1
    return np.asarray(places)


def _level(steps: NDArray[np.uint16], cells: NDArray[np.uint16], of: int, kind: str) -> MapLevel:
    names = list(SUBJECTS)
    clusters = []
    for number in range(5 * len(names) // of):
        own = steps[(cells // of == number) & (cells < 5 * len(names))]
        x, y = (int(v) for v in np.median(own, axis=0)) if len(own) else (0, 0)
        subject = names[number * of // 5]
        part = SUBJECTS[subject][number % 5]
        words = (subject, *SUBJECTS[subject][:2]) if kind == "coarse" else (part, _ADJECTIVES[number % 10])
        clusters.append(MapCluster(words, x, y, len(own)))
    of_cell = np.append(np.arange(5 * len(names)) // of, -1).astype(np.int32)
    return MapLevel(tuple(clusters), of_cell)


def _columns(
    n: int, coarse: NDArray[np.int32], fine: NDArray[np.int32], rng: np.random.Generator
) -> tuple[MapColumn, ...]:
    stars = np.clip(rng.normal(140 + 60 * np.sin(fine), 55, n), 0, 253).astype(np.uint8)
    days = (253 * rng.beta(2.2, 1.3, n)).astype(np.uint8)
    days[::97] = 255
    shop = ((coarse * 7 + (rng.random(n) < 0.2)) % 9).astype(np.uint8)

    def counts(codes: NDArray[Any]) -> tuple[int, ...]:
        return tuple(int(c) for c in np.bincount(codes, minlength=256))

    shops = ("Berlin", "Lagos", "Lima", "Osaka", "Oslo", "Pune", "Quito", "Turin", "Yazd")
    return (
        MapColumn("rating", "number", stars, counts(stars), 1.0, 5.0),
        MapColumn("written", "time", days, counts(days), 1_262_304_000.0, 1_577_836_800.0),
        MapColumn("shop", "category", shop, counts(shop), labels=shops, categories=9),
    )


def _inner(cells: NDArray[np.uint16]) -> list[int]:
    """A point of some clusters, -1 where there is none."""
    return [int(found[0]) if len(found := np.flatnonzero(cells == c)) else -1 for c in (0, 53, 46)]


def _neighbours(cells: NDArray[np.uint16], rng: np.random.Generator) -> NDArray[np.uint32]:
    """Points of the same cluster, as near as a made-up map needs."""
    order = np.argsort(cells, kind="stable")
    rank = np.empty(len(cells), np.int64)
    rank[order] = np.arange(len(cells))
    near = rank[:, None] + np.array([1, -1, 2, -2, 3])
    return np.asarray(order[np.clip(near, 0, len(cells) - 1)], dtype=np.uint32)
