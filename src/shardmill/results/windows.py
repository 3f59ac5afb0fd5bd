"""Results with several rows per item: which rows belong to which item, and whether any are missing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
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


class RowItems:
    """Numbers the rows of a part, whose batches are given in order, by their items in the shard."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._last = plan, -1

    def of(self, rows: pa.RecordBatch) -> tuple[Numbers, NDArray[np.bool_]]:
        """The item of each row, and whether it is the first row of its item."""
        if has_items(self._plan, rows.schema):
            items = item_numbers(rows)
        elif has_windows(self._plan, rows.schema):
            items = count_items(rows.column(WINDOW), self._last + 1)
        else:
            items = np.arange(self._last + 1, self._last + 1 + rows.num_rows)
        firsts = items != np.append(self._last, items[:-1]) if len(items) else np.zeros(0, bool)
        self._last = int(items[-1]) if len(items) else self._last
        return items, firsts


@dataclass(slots=True)
class ItemCheck:
    """Checks the rows of a part in order: the numbers of items count up, and those without a row were counted."""

    items: int = 0
    wrong: int = 0
    _last: int = -1
    _seen: list[Numbers] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        numbers = item_numbers(rows)
        self._seen.append(np.unique(numbers))
        if len(numbers):
            before, self._last = np.append(self._last, numbers[:-1]), int(numbers[-1])
            self.items += int((numbers != before).sum())
            self.wrong += int((numbers < before).sum())

    def close(self, items: int, dropped: int) -> None:
        """Compare with the numbers of items and of items without a row that were committed."""
        self.wrong += abs(items - dropped - self.items) + (self._last >= items)

    def dropped(self, items: int) -> Numbers:
        """The items without a row."""
        return np.setdiff1d(np.arange(items), np.concatenate([np.zeros(0, np.int64), *self._seen]))


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
