"""Rows of a part that have null in all columns of the task: each needs an error on record."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.plan import ITEM, Plan
from shardmill.results.windows import count_items, has_items, has_windows, item_numbers
from shardmill.tasks.base import WINDOW


class EmptyRows:
    """Takes the batches of one part in order; `items` has the item of each empty row, numbered within the shard."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._before = 0
        self.items: list[int] = []

    def add(self, rows: pa.RecordBatch) -> None:
        items = item_numbers(rows) if has_items(self._plan, rows.schema) else None
        if has_windows(self._plan, rows.schema):
            items = count_items(rows.column(WINDOW), self._before)
        if (empty := _find_empty(rows, self._plan)) is not None:
            places = np.flatnonzero(empty.to_numpy(zero_copy_only=False))
            self.items += (items[places] if items is not None else places + self._before).tolist()
        if items is None:
            self._before += rows.num_rows
        elif len(items):
            self._before = int(items[-1]) + 1

    def without(self, failed: Collection[int]) -> int:
        """How many of these rows are not among the items that have an error on record."""
        known = set(failed)
        return sum(item not in known for item in self.items)


def _find_empty(rows: pa.RecordBatch, plan: Plan) -> pa.BooleanArray | None:
    """Which rows are empty; None if none is, or if the task adds no columns."""
    empty: pa.BooleanArray | None = None
    for name in rows.schema.names:
        if name in plan.kept or name in (WINDOW, ITEM):
            continue
        column = rows.column(name)
        if not column.null_count:
            return None
        empty = column.is_null() if empty is None else pc.and_(empty, column.is_null())
    return empty
