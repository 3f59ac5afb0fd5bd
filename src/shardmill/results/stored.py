"""Stored rows beside the same items of the source, and how well a stored value fits one that is made again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.plan import Plan
from shardmill.results.windows import RowItems
from shardmill.sinks.parquet import is_vector
from shardmill.sources import ItemBatch
from shardmill.tasks.base import add_bytes

Items = tuple[list[str | None], pa.RecordBatch, list[int]]


def pick_rows(batches: Iterator[pa.RecordBatch], items: Sequence[int], plan: Plan) -> dict[int, list[pa.RecordBatch]]:
    """The rows of each of these items of a part, which are in order."""
    found: dict[int, list[pa.RecordBatch]] = {}
    wanted, numbers = np.array(items, np.int64), RowItems(plan)
    for batch in batches:
        own, _ = numbers.of(batch)
        if not len(own) or own[-1] < wanted[0]:
            continue
        if own[0] > wanted[-1]:
            break
        for item in wanted[np.searchsorted(wanted, own[0]) : np.searchsorted(wanted, own[-1], "right")].tolist():
            start, stop = np.searchsorted(own, [item, item + 1])
            if start < stop:
                found.setdefault(item, []).append(batch.slice(start, stop - start))
    return found


def pick_items(batches: Iterator[ItemBatch], rows: Sequence[int]) -> Iterator[Items]:
    """The texts and kept columns of these items of a shard, which are in order; what follows the last is not read."""
    first = at = 0
    while at < len(rows) and (batch := next(batches, None)) is not None:
        own = list(rows[at : bisect_left(rows, first + len(batch))])
        if own:
            where = pa.array([row - first for row in own])
            yield batch.texts.take(where).to_pylist(), _with_bytes(batch).take(where), own
        at += len(own)
        first += len(batch)


def find_items(
    batches: Iterator[ItemBatch], stored: dict[int, list[pa.RecordBatch]], names: Sequence[str]
) -> Iterator[Items]:
    """Find the same rows by their ids, in a source whose rows may have changed since."""
    wanted = {tuple(rows[0].column(n)[0].as_py() for n in names): item for item, rows in stored.items()}
    for batch in batches:
        ids = zip(*(batch.kept.column(n).to_pylist() for n in names), strict=True)
        own = {wanted[value]: i for i, value in enumerate(ids) if value in wanted}
        if own:
            where = pa.array(own.values())
            yield batch.texts.take(where).to_pylist(), _with_bytes(batch).take(where), list(own)


def _with_bytes(batch: ItemBatch) -> pa.RecordBatch:
    """The kept columns of items, and the bytes of those that are bytes."""
    return add_bytes(batch.kept, batch.contents) or batch.kept


def is_same(stored: Any, given: Any) -> bool:
    """Whether a stored value is the given one. Earlier versions stored a vector of NaN as they stored a missing one."""
    if not is_vector(stored.type):
        return bool(stored.equals(given) or repr(stored.as_py()) == repr(given.as_py()))
    a, b = (_numbers(each) if each.is_valid else None for each in (stored, given))
    if a is None or b is None:
        return all(each is None or bool(np.isnan(each).all()) for each in (a, b))
    return np.array_equal(a, b, equal_nan=True)


def fit(stored: Any, again: Any) -> float:
    """1 if they are equal, and only then; the cosine of vectors; 0 if one is missing or anything else differs."""
    if not is_vector(stored.type) or not (stored.is_valid and again.is_valid):
        return float(is_same(stored, again))
    a, b = _numbers(stored), _numbers(again)
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / scale if scale else 0.0
    return 1.0 if np.array_equal(a, b) else min(cosine, float(np.nextafter(1.0, 0.0)))


def _numbers(vector: Any) -> NDArray[np.float64]:
    return np.asarray(vector.values.to_numpy(zero_copy_only=False), np.float64)
