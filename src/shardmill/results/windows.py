"""Results with several rows per item: which rows belong to which item, and whether any are missing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.plan import ITEM, Plan
from shardmill.tasks.base import START, STOP, WINDOW

Numbers = NDArray[np.int64]


def has_windows(plan: Plan, schema: pa.Schema) -> bool:
    """Whether items can have several rows; a source column of the same name does not count."""
    return WINDOW in schema.names and WINDOW not in plan.kept


def count_items(windows: pa.Array, before: int) -> Numbers:
    """The item number of each row in the source; `before` items began in earlier rows."""
    firsts: Numbers = np.cumsum(windows.to_numpy(zero_copy_only=False) == 0)
    return firsts + (before - 1)


def has_items(plan: Plan, schema: pa.Schema) -> bool:
    """Whether items can have several rows or none; each row then has the number of its item in the shard."""
    return ITEM in schema.names and ITEM not in plan.kept


def item_numbers(rows: pa.RecordBatch) -> Numbers:
    found: Numbers = rows.column(ITEM).to_numpy(zero_copy_only=False)
    return found


class FirstRows:
    """The first row of each item of a part, whose batches are given in order."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._last = plan, -1

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if has_windows(self._plan, rows.schema):
            return first_rows(rows)
        if not has_items(self._plan, rows.schema) or not rows.num_rows:
            return rows
        numbers = item_numbers(rows)
        before, self._last = np.append(self._last, numbers[:-1]), int(numbers[-1])
        return rows.filter(pa.array(numbers != before))


def first_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The first row of each item."""
    return rows.filter(pc.equal(rows.column(WINDOW), 0))


@dataclass(slots=True)
class ItemCheck:
    """Checks the rows of a part in order: the numbers of items count up, and those without a row were counted."""

    items: int = 0
    wrong: int = 0
    _last: int = -1

    def add(self, rows: pa.RecordBatch) -> None:
        numbers = item_numbers(rows)
        if len(numbers):
            before, self._last = np.append(self._last, numbers[:-1]), int(numbers[-1])
            self.items += int((numbers != before).sum())
            self.wrong += int((numbers < before).sum())

    def close(self, items: int, dropped: int) -> None:
        """Compare with the numbers of items and of items without a row that were committed."""
        self.wrong += abs(items - dropped - self.items) + (self._last >= items)


@dataclass(slots=True)
class WindowCheck:
    """Checks the rows of a part in order: window numbers count up from 0, and spans have no gaps."""

    items: int = 0
    wrong: int = 0
    _last: tuple[int, int, int] | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        windows = rows.column(WINDOW).to_numpy(zero_copy_only=False).astype(np.int64)
        if not len(windows):
            return
        spans = [rows.column(n).fill_null(0).to_numpy() for n in (START, STOP) if n in rows.schema.names]
        starts, stops = spans if len(spans) == 2 else (np.zeros_like(windows), windows + 1)
        last = self._last or (-1, 0, 0)
        before, before_start, before_stop = (
            np.append(first, column[:-1]) for first, column in zip(last, (windows, starts, stops), strict=True)
        )
        first = (windows == 0) & (starts == 0) & (starts <= stops)
        follows = windows == before + 1
        if len(spans) == 2:
            follows &= (starts >= before_start) & (starts <= before_stop) & (stops >= before_stop)
        if self._last is None:
            follows[0] = False
        self.items += int((windows == 0).sum())
        self.wrong += int((~np.where(windows == 0, first, follows)).sum())
        self._last = int(windows[-1]), int(starts[-1]), int(stops[-1])
