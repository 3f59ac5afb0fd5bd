"""Collects rows into item batches: texts, kept columns, line numbers, and why a row is bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from shardmill.core.template import TextTemplate
from shardmill.sources.base import ItemBatch
from shardmill.sources.columns import Column
from shardmill.sources.origin import HASH, Origin, hash_text

BATCH_ROWS = 1024
BATCH_BYTES = 4 << 20


class BatchBuilder:
    def __init__(self, template: TextTemplate, columns: Sequence[Column], origin: Origin | None = None) -> None:
        self._template, self._columns, self._origin = template, columns, origin
        self._schema = pa.schema([pa.field(c.name, c.type) for c in columns])
        self._lines_done = 0
        self._clear()

    def _clear(self) -> None:
        self._texts: list[str | None] = []
        self._kept: list[list[object]] = [[] for _ in self._columns]
        self._lines: list[int] = []
        self._bad: dict[int, str] = {}
        self._places: list[int] = []
        self._unread: set[int] = set()
        self._size_bytes = 0

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether one more row fits; an empty batch takes any row."""
        if not self._texts:
            return True
        return len(self._texts) < BATCH_ROWS and self._size_bytes + size_bytes <= BATCH_BYTES

    def add(
        self, row: Mapping[str, object], line: int, size_bytes: int, place: int | None = None, bad: str | None = None
    ) -> None:
        """Add a row; one that is `bad` has no text, but keeps the columns that are known of it."""
        if self._origin is not None:
            row = {**row, **self._origin.of(line)}
        text, reason = (None, bad) if bad else self._template.render(row)
        if self._origin is not None and self._origin.hashed:
            row = {**row, HASH: hash_text(text)}
        for column, values in zip(self._columns, self._kept, strict=True):
            value = row.get(column.name)
            try:
                values.append(column.convert(value))
            except ValueError:
                values.append(None)
                text, reason = None, reason or column.refusal(value)
                if column.decides:
                    self._unread.add(len(self._texts))
        self._append(text, reason, line, size_bytes, place)

    def add_bad(self, reason: str, line: int, size_bytes: int = 0, place: int | None = None) -> None:
        """Add a row that could not be read at all. Where it came from is known."""
        known = {} if self._origin is None else self._origin.of(line)
        for column, values in zip(self._columns, self._kept, strict=True):
            values.append(column.convert(known.get(column.name)))
        self._unread.add(len(self._texts))
        self._append(None, reason, line, size_bytes, place)

    def _append(self, text: str | None, reason: str | None, line: int, size_bytes: int, place: int | None) -> None:
        if reason:
            self._bad[len(self._texts)] = reason
        self._texts.append(text)
        self._lines.append(line)
        if place is not None:
            self._places.append(place)
        self._size_bytes += size_bytes

    def take(self, lines_done: int) -> ItemBatch:
        """Return the batch so far, which covers the shard's lines up to `lines_done`, and start the next one."""
        arrays = [pa.array(values, c.type) for values, c in zip(self._kept, self._columns, strict=True)]
        batch = ItemBatch(
            texts=pa.array(self._texts, pa.string()),
            kept=make_kept(arrays, self._schema, len(self._texts)),
            lines=self._lines,
            line_count=lines_done - self._lines_done,
            bad=self._bad,
            size_bytes=self._size_bytes,
            places=self._places,
            unread=frozenset(self._unread),
        )
        self._lines_done = lines_done
        self._clear()
        return batch


def make_kept(arrays: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Build a batch of `rows` rows, even if no column is kept."""
    if arrays:
        return pa.RecordBatch.from_arrays(list(arrays), schema=schema)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
