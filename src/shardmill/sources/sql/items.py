"""Turns the rows of a database into items, column by column, which is fastest for driver and Arrow."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from shardmill.core.template import Rendered, TextTemplate
from shardmill.sources.base import ItemBatch
from shardmill.sources.batches import make_kept
from shardmill.sources.columns import Column, infer_type
from shardmill.sources.parsing import over_limit
from shardmill.sources.sql.base import Rows

_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError)


class ItemMaker:
    """Makes items of rows that have the fields of the template first, then the id and kept columns."""

    def __init__(self, template: TextTemplate, columns: Sequence[Column], max_item_bytes: int) -> None:
        self._template, self._columns, self._max_item_bytes = template, columns, max_item_bytes
        self._schema = pa.schema([pa.field(c.name, c.type) for c in columns])

    def make(self, rows: Rows, rows_done: int, weight: float, whole: bool) -> ItemBatch:
        """The items of rows that follow `rows_done` rows of their shard, which is perhaps the `whole` query; `weight`
        is bytes per row."""
        names = self._template.names
        values = list(zip(*rows, strict=True)) or [()] * (len(names) + len(self._columns))
        bad: dict[int, str] = {}
        unread: set[int] = set()
        kept = [_convert(c, values[len(names) + i], bad, unread) for i, c in enumerate(self._columns)]
        return ItemBatch(
            texts=self._texts(values[: len(names)], len(rows), bad),
            kept=make_kept(kept, self._schema, len(rows)),
            lines=list(range(rows_done + 1, rows_done + len(rows) + 1)),
            line_count=len(rows),
            bad=dict(sorted(bad.items())),
            size_bytes=int(weight * len(rows)),
            places=range(rows_done, rows_done + len(rows)) if whole else (),
            unread=frozenset(unread),
        )

    def _texts(self, values: Sequence[Sequence[Any]], rows: int, bad: dict[int, str]) -> pa.StringArray:
        if not values:
            return pa.array([None if i in bad else self._template.parts[0] for i in range(rows)], pa.string())
        if self._template.single and not bad:
            try:
                texts = pa.array(values[0], pa.string())
                # If all texts together are under the limit, each one is.
                if texts.nbytes <= self._max_item_bytes and all(map(str.strip, values[0])):
                    return texts
            except _MISFITS:
                pass
        names, made = self._template.names, []
        for i, row in enumerate(zip(*values, strict=True)):
            text, reason = self._render({name: plain_value(v) for name, v in zip(names, row, strict=True)})
            if reason:
                bad.setdefault(i, reason)
            made.append(None if i in bad else text)
        return pa.array(made, pa.string())

    def _render(self, row: dict[str, object]) -> Rendered:
        text, reason = self._template.render(row)
        if text is not None and 4 * len(text) > self._max_item_bytes < (size := len(text.encode())):
            return None, over_limit("the text", size, self._max_item_bytes)
        return text, reason


def _convert(column: Column, values: Sequence[Any], bad: dict[int, str], unread: set[int]) -> pa.Array:
    try:
        return pa.array(values, column.type)
    except _MISFITS:
        made = [_convert_one(column, value, i, bad, unread) for i, value in enumerate(values)]
        return pa.array(made, column.type)


def _convert_one(column: Column, value: Any, i: int, bad: dict[int, str], unread: set[int]) -> object:
    if value is None:
        return None
    try:
        # Returns the original value: Python cannot represent all dates of Arrow, such as those before year 1.
        pa.scalar(value, column.type)
        return value
    except _MISFITS:
        value = plain_value(value)
    try:
        return column.convert(value)
    except ValueError:
        bad.setdefault(i, column.refusal(value))
        unread.update([i] if column.decides else [])
        return None


def plain_value(value: Any) -> Any:
    """The value as a JSON type or as text; bytes stay bytes, because JSON has no type for them."""
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=_plain_text)
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return str(value)


def _plain_text(value: Any) -> Any:
    return str(value) if isinstance(value, decimal.Decimal | uuid.UUID) else plain_value(value)


def infer_kind(values: Iterable[object]) -> str:
    """Infer the type of values from a driver that does not name one.

    >>> infer_kind([datetime.date(2026, 1, 2), None]), infer_kind([1, 2.5]), infer_kind([decimal.Decimal(1)])
    ('date32[day]', 'double', 'string')
    """
    seen = [value for value in values if value is not None]
    if seen and all(isinstance(value, datetime.datetime) for value in seen):
        aware = all(getattr(value, "tzinfo", None) is not None for value in seen)
        return "timestamp[us, tz=UTC]" if aware else "timestamp[us]"
    if seen and all(type(value) is datetime.date for value in seen):
        return "date32[day]"
    return infer_type(seen)


def size_of(row: Sequence[Any]) -> int:
    """The approximate size of a row in bytes."""
    return sum(len(v.encode("utf-8", "replace")) if isinstance(v, str) else 8 for v in row)
