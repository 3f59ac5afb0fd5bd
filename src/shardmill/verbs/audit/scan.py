"""One pass over all rows: what can be seen without the model, and a sample of the rows for what cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.sources.ahead import ahead
from shardmill.verbs.audit.rows import RowBlock, Rows
from shardmill.verbs.audit.stored import matrices

# Vectors whose digests are held: 16 bytes each. Of more, those whose digests end in zeros, so doubles stay together.
_HELD = 1 << 22
_SEED = 0
# Lengths this near to 1 are those of normalized vectors in float32, float16 and bfloat16; far ones are not.
UNIT_SLACK, FAR_FROM_UNIT = 4e-3, 0.05


@dataclass(slots=True)
class Places:
    """How many rows have something, and the first and the last of them."""

    count: int = 0
    first: int = -1
    last: int = -1

    def add(self, rows: NDArray[np.int64]) -> None:
        if len(rows):
            self.first = int(rows[0]) if self.first < 0 else min(self.first, int(rows[0]))
            self.last = max(self.last, int(rows[-1]))
            self.count += len(rows)

    @property
    def together(self) -> bool:
        """Whether all rows between the first and the last have it."""
        return self.count == self.last - self.first + 1


@dataclass(slots=True)
class Sampled:
    """A row that was drawn."""

    row: int
    draw: float
    vector: NDArray[Any]
    text: str | None


@dataclass(slots=True)
class Scanned:
    """What a pass over all rows saw. `lengths` are the shortest and the longest vector that is finite and not zero."""

    rows: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    first_of_width: dict[int, int] = field(default_factory=dict)
    dtype: str = ""
    missing: Places = field(default_factory=Places)
    nan: Places = field(default_factory=Places)
    infinite: Places = field(default_factory=Places)
    zero: Places = field(default_factory=Places)
    unit: Places = field(default_factory=Places)
    between: Places = field(default_factory=Places)
    far: Places = field(default_factory=Places)
    lengths: tuple[float, float] = (np.inf, 0.0)
    doubles: list[tuple[int, int]] = field(default_factory=list)
    doubled: int = 0
    sample: list[Sampled] = field(default_factory=list)

    @property
    def dims(self) -> int:
        """The dimensions that most vectors have."""
        return self.widths.most_common(1)[0][0] if self.widths else 0

    @property
    def usable(self) -> int:
        return sum(self.widths.values()) - self.nan.count - self.infinite.count - self.zero.count


def scan(rows: Rows, sample: int, on_progress: Callable[[float, str], None]) -> Scanned:
    """Read all rows once; the memory it takes does not depend on their number."""
    seen, digests = Scanned(), _Digests()
    draws = np.random.default_rng(_SEED)
    for block in ahead(rows.read):
        _look_at(seen, digests, block, draws.random(len(block)), sample)
        seen.rows += len(block)
        on_progress(block.share, f"{seen.rows:,} vectors")
    seen.sample = sorted(seen.sample, key=lambda each: each.draw)[:sample]
    seen.sample = sorted((each for each in seen.sample if len(each.vector) == seen.dims), key=lambda each: each.row)
    seen.doubles, seen.doubled = digests.doubles()
    return seen


def _look_at(seen: Scanned, digests: _Digests, block: RowBlock, draws: NDArray[np.float64], sample: int) -> None:
    there = np.zeros(len(block), bool)
    limit = np.inf if len(seen.sample) < sample else seen.sample[-1].draw if sample else 0.0
    for places, matrix in matrices(block.vectors):
        there[places] = True
        numbers = seen.rows + places
        width = int(matrix.shape[1])
        seen.widths[width] += len(places)
        seen.first_of_width.setdefault(width, int(numbers[0]))
        seen.dtype = seen.dtype or str(matrix.dtype)
        wide = matrix if matrix.dtype in (np.float32, np.float64) else matrix.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        usable = _sort_by_length(seen, numbers, wide, lengths)
        digests.add(numbers[usable], matrix[usable] if not usable.all() else matrix, _hash_texts(block, places[usable]))
        for i in np.flatnonzero(usable & (draws[places] < limit)):
            text = None if block.texts is None else block.texts[int(places[i])].as_py()
            if text is not None or block.texts is None:
                seen.sample.append(Sampled(int(numbers[i]), float(draws[places[i]]), matrix[i].copy(), text))
    if block.texts is not None:
        # A row without a text needs no vector.
        there |= block.texts.is_null().to_numpy(zero_copy_only=False)
    seen.missing.add(seen.rows + np.flatnonzero(~there))
    seen.sample = sorted(seen.sample, key=lambda each: each.draw)[:sample]


def _sort_by_length(
    seen: Scanned, numbers: NDArray[np.int64], matrix: NDArray[Any], lengths: NDArray[Any]
) -> NDArray[np.bool_]:
    """Count the rows by the length of their vectors, and return which can be used."""
    finite = np.isfinite(lengths)
    if not finite.all():
        odd = np.flatnonzero(~finite)
        nan, infinite = np.isnan(matrix[odd]).any(axis=1), np.isinf(matrix[odd]).any(axis=1)
        seen.nan.add(numbers[odd[nan]])
        seen.infinite.add(numbers[odd[infinite & ~nan]])
        # Numbers too large to be squared are finite all the same.
        finite[odd[~nan & ~infinite]] = True
    usable: NDArray[np.bool_] = finite & (lengths > 0)
    seen.zero.add(numbers[finite & ~usable])
    off = np.abs(lengths - 1)
    seen.unit.add(numbers[usable & (off <= UNIT_SLACK)])
    seen.between.add(numbers[usable & (off > UNIT_SLACK) & (off < FAR_FROM_UNIT)])
    seen.far.add(numbers[usable & (off >= FAR_FROM_UNIT)])
    if usable.any():
        own = lengths[usable]
        seen.lengths = min(seen.lengths[0], float(own.min())), max(seen.lengths[1], float(own.max()))
    return usable


def _hash_texts(block: RowBlock, places: NDArray[np.int64]) -> NDArray[np.int64]:
    if block.texts is None:
        return places
    hashes = np.fromiter(map(hash, block.texts.to_pylist()), np.int64, len(block))
    return hashes[places]


class _Digests:
    """Digests of vectors and of their texts, to find vectors that several texts have; a bounded number of them."""

    def __init__(self) -> None:
        self._weights = np.zeros(0, np.uint64)
        self._kept: list[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]] = []
        self._count = 0
        self._zeros = 0

    def add(self, rows: NDArray[np.int64], matrix: NDArray[Any], texts: NDArray[np.int64]) -> None:
        digests = self._digest(matrix)
        if self._zeros:
            own = self._is_kept(digests)
            digests, rows, texts = digests[own], rows[own], texts[own]
        self._kept.append((digests, rows, texts))
        self._count += len(rows)
        while self._count > _HELD:
            self._zeros += 1
            self._join()
            digests, rows, texts = self._kept[0]
            own = self._is_kept(digests)
            self._kept = [(digests[own], rows[own], texts[own])]
            self._count = int(own.sum())

    def _is_kept(self, digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = (digests >> np.uint64(64 - self._zeros)) == 0
        return kept

    def _join(self) -> None:
        if len(self._kept) != 1:
            kinds = (np.uint64, np.int64, np.int64)
            parts = zip(*self._kept, strict=True) if self._kept else ((), (), ())
            digests, rows, texts = (
                np.concatenate([np.zeros(0, kind), *part]) for kind, part in zip(kinds, parts, strict=True)
            )
            self._kept = [(digests.astype(np.uint64), rows, texts)]

    def _digest(self, matrix: NDArray[Any]) -> NDArray[np.uint64]:
        """A number per row that equal rows share, and others practically never do."""
        data = np.ascontiguousarray(matrix)
        words = data.view(np.uint8).reshape(len(data), -1)
        kind = next(
            kind for kind in (np.uint64, np.uint32, np.uint16, np.uint8) if not words.shape[1] % kind().itemsize
        )
        words = words.view(kind)
        if len(self._weights) < words.shape[1]:
            drawn = np.random.default_rng(_SEED).integers(0, 1 << 63, words.shape[1], np.uint64)
            self._weights = drawn * np.uint64(2) + np.uint64(1)
        mixed = words.astype(np.uint64, copy=False) @ self._weights[: words.shape[1]]
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        result: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(32))
        return result

    def doubles(self) -> tuple[list[tuple[int, int]], int]:
        """Pairs of rows with one vector and two texts, one pair per vector, and how many rows share a vector so."""
        self._join()
        digests, rows, texts = self._kept[0]
        order = np.lexsort((rows, texts, digests))
        digests, rows, texts = digests[order], rows[order], texts[order]
        begins = np.flatnonzero(np.concatenate([[True], digests[1:] != digests[:-1]])) if len(digests) else order[:0]
        ends = np.append(begins[1:], len(digests)) if len(begins) else begins
        several = texts[begins] != texts[ends - 1] if len(begins) else np.zeros(0, bool)
        begins, ends = begins[several], ends[several]
        both = np.sort(np.stack([rows[begins], rows[ends - 1]], axis=1), axis=1)
        pairs = sorted((int(a), int(b)) for a, b in both)
        return pairs, int((ends - begins).sum()) << self._zeros
