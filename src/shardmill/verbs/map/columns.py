"""Kept columns as one byte per point, to colour by: numbers and times by their place between two ends, categories by
frequency. The values themselves are kept as texts where that byte does not tell them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.console import clean
from shardmill.verbs.map.page_data import MOST_CODES, NULL, OTHER, Blocks, MapColumn

_LABEL_CHARACTERS, _VALUE_CHARACTERS = 60, 400
_ZEROS = re.compile(r"\.0+(?=Z?$)")
# More values of a column of texts than this are counted no further: it is no category.
MOST_CATEGORIES = 50_000


def is_shown(kind: pa.DataType) -> bool:
    """Whether points can be coloured by a column of this type."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_decimal)
    return any(test(kind) for test in tests) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)


class ColumnCodes:
    """Collects one column, batch by batch, in a few bytes per point and its compressed values."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name, self._kind = name, kind
        self._is_text = pa.types.is_string(kind) or pa.types.is_boolean(kind)
        self._numbers: list[NDArray[np.float64]] = []
        self._codes: list[NDArray[np.int32]] = []
        self._values: dict[str, int] = {}
        self._too_many = False
        self._told = Blocks()

    def add(self, column: pa.Array) -> None:
        if self._is_text:
            self._add_texts(column.cast(pa.string()))
        else:
            self._numbers.append(_as_numbers(column))
            self._told.add(_as_texts(column))

    def _add_texts(self, column: pa.Array) -> None:
        if self._too_many:
            return
        encoded = column.dictionary_encode()
        numbers = [self._values.setdefault(value, len(self._values)) for value in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        self._codes.append(np.array([*numbers, -1], np.int32)[codes])
        if len(self._values) > MOST_CATEGORIES:
            self._too_many, self._codes, self._values = True, [], {}

    def finish(self) -> MapColumn | None:
        """The column; None if it has no value, or nearly as many values as points."""
        return self._finish_texts() if self._is_text else self._finish_numbers()

    def _finish_texts(self) -> MapColumn | None:
        if self._too_many or not self._values:
            return None
        found = np.concatenate(self._codes)
        counts = Counter(dict(enumerate(np.bincount(found[found >= 0], minlength=len(self._values)).tolist())))
        if len(self._values) > MOST_CODES and counts.most_common(1)[0][1] == 1:
            return None
        names = [*self._values]
        order = sorted(counts, key=lambda number: (-counts[number], names[number]))
        table = np.full(len(names) + 1, OTHER, np.uint8)
        table[order[:MOST_CODES]] = np.arange(min(MOST_CODES, len(order)))
        table[-1] = NULL
        shown = [clean(name) for name in names]
        labels = tuple(shown[number][:_LABEL_CHARACTERS] for number in order[:MOST_CODES])
        if len(names) > MOST_CODES or max(map(len, shown)) > _LABEL_CHARACTERS:
            told = [*map(_cut, shown), None]
            self._told.add([told[number] for number in found.tolist()])
        values = tuple(self._told.finish())
        return _column(self.name, "category", table[found], labels=labels, categories=len(names), values=values)

    def _finish_numbers(self) -> MapColumn | None:
        values = np.concatenate(self._numbers) if self._numbers else np.zeros(0)
        there = np.isfinite(values)
        if not there.any():
            return None
        low, high = float(values[there].min()), float(values[there].max())
        codes = np.full(len(values), NULL, np.uint8)
        # Halved first: the distance of two huge numbers may be infinite.
        scale = (values[there] / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
        codes[there] = np.rint(scale * (MOST_CODES - 1)).astype(np.uint8)
        is_time = pa.types.is_date(self._kind) or pa.types.is_timestamp(self._kind)
        return _column(
            self.name, "time" if is_time else "number", codes, low=low, high=high, values=tuple(self._told.finish())
        )


def _column(name: str, kind: Any, codes: NDArray[np.uint8], **more: Any) -> MapColumn:
    counts = tuple(np.bincount(codes, minlength=256).tolist())
    return MapColumn(name=clean(name), kind=kind, codes=codes, counts=counts, **more)


def _as_numbers(column: pa.Array) -> NDArray[np.float64]:
    """Numbers with NaN for null; times in seconds since 1970."""
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = pc.divide(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)
    numbers: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def _as_texts(column: pa.Array) -> list[str | None]:
    """Numbers and times as they are written, None for null; a time without a fraction of zeros."""
    texts: list[str | None] = column.cast(pa.string()).to_pylist()
    if pa.types.is_timestamp(column.type):
        return [text and _ZEROS.sub("", text) for text in texts]
    return texts


def _cut(text: str) -> str:
    return text if len(text) <= _VALUE_CHARACTERS else text[: _VALUE_CHARACTERS - 1] + "…"
