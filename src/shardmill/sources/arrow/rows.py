"""Checks the schema of Arrow batches, from Parquet and Arrow files, and turns their rows into items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.core.arrowtypes import type_text
from shardmill.core.errors import SourceError
from shardmill.core.template import TextTemplate
from shardmill.sources.base import Fields, ItemBatch, Row, SourceFile, SourceStat
from shardmill.sources.batches import make_kept
from shardmill.sources.columns import Column, build_columns, chosen_types, column_names
from shardmill.sources.files import file_name
from shardmill.sources.origin import HASH, Origin, hash_text, no_field
from shardmill.sources.parsing import over_limit


class RowMaker:
    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        self._max_item_bytes = max_item_bytes
        self._template = TextTemplate.parse(fields.text)
        self._columns = build_columns(stat, fields)
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self._columns])
        names = dict.fromkeys((*self._template.names, *(c.name for c in self._columns)))
        self.names = [name for name in names if name not in stat.origin]

    def items(
        self, batch: pa.RecordBatch, rows_done: int, weight: float, first: int, origin: Origin | None
    ) -> ItemBatch:
        """The items of a batch that follows `rows_done` rows of its shard, which begins with the row `first` of its
        file; `weight` is bytes per row."""
        bad: dict[int, str] = {}
        unread: set[int] = set()
        if origin is not None:
            batch = origin.extend(batch, rows_done)
        if not self._template.names:
            arrays = [_convert(column, batch.column(column.name), bad, unread) for column in self._columns]
            texts: list[str | None] = [None if i in bad else "" for i in range(batch.num_rows)]
            return self._batch(texts, arrays, bad, unread, rows_done, weight, first)
        plain = None
        if self._template.single and not (origin is not None and origin.hashed):
            plain = _plain_texts(batch.column(self._template.names[0]), self._max_item_bytes)
        if plain is not None:
            arrays = [_convert(column, batch.column(column.name), bad, unread) for column in self._columns]
            if not bad:
                return self._batch(plain, arrays, bad, unread, rows_done, weight, first)
            bad, unread = {}, set()
        rows: list[dict[str, object]] = [{} for _ in range(batch.num_rows)]
        for name in self._template.names:
            for i, value in enumerate(_values(name, batch.column(name), bad)):
                rows[i][name] = value
        rendered = [self._template.render(row) for row in rows]
        if origin is not None and origin.hashed:
            batch = batch.append_column(HASH, pa.array([hash_text(text) for text, _ in rendered], pa.string()))
        arrays = [_convert(column, batch.column(column.name), bad, unread) for column in self._columns]
        texts = []
        for i, (text, reason) in enumerate(rendered):
            if text is not None and 4 * len(text) > self._max_item_bytes < (size := len(text.encode())):
                text, reason = None, over_limit("the text", size, self._max_item_bytes)
            if reason:
                bad.setdefault(i, reason)
            texts.append(None if i in bad else text)
        return self._batch(texts, arrays, bad, unread, rows_done, weight, first)

    def skipped(self, rows: int, rows_done: int, weight: float, first: int) -> ItemBatch:
        """Rows that are not read, since none of them is taken."""
        arrays = [pa.nulls(rows, column.type) for column in self._columns]
        return replace(
            self._batch([None] * rows, arrays, {}, set(), rows_done, weight, first), taken=np.zeros(rows, bool)
        )

    def _batch(
        self,
        texts: list[str | None] | pa.StringArray,
        arrays: list[pa.Array],
        bad: dict[int, str],
        unread: set[int],
        rows_done: int,
        weight: float,
        first: int,
    ) -> ItemBatch:
        return ItemBatch(
            texts=texts if isinstance(texts, pa.StringArray) else pa.array(texts, pa.string()),
            kept=make_kept(arrays, self._schema, len(texts)),
            lines=list(range(rows_done + 1, rows_done + len(texts) + 1)),
            line_count=len(texts),
            bad=dict(sorted(bad.items())),
            size_bytes=int(weight * len(texts)),
            places=range(first + rows_done, first + rows_done + len(texts)),
            unread=frozenset(unread),
        )


def _plain_texts(array: pa.Array, limit_bytes: int) -> pa.StringArray | None:
    """The texts, if all are beyond doubt: none is null, blank or too long."""
    if array.null_count or not pa.types.is_string(plain_type(array.type)):
        return None
    try:
        texts = array.cast(pa.string())
        texts.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    trimmed = pc.min(pc.binary_length(pc.utf8_ltrim_whitespace(texts))).as_py()
    return texts if trimmed and longest <= limit_bytes else None


def _values(name: str, array: pa.Array, bad: dict[int, str]) -> list[object]:
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_value(name, array, i, bad) for i in range(len(array))]


def _value(name: str, array: pa.Array, i: int, bad: dict[int, str]) -> object:
    try:
        return array[i].as_py()
    except UnicodeDecodeError:
        bad[i] = f"'{name}' is not valid UTF-8"
        return None


def _convert(column: Column, array: pa.Array, bad: dict[int, str], unread: set[int]) -> pa.Array:
    try:
        converted = array.cast(column.type)
        converted.validate(full=True)
        return converted
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([_convert_one(column, array, i, bad, unread) for i in range(len(array))], column.type)


def _convert_one(column: Column, array: pa.Array, i: int, bad: dict[int, str], unread: set[int]) -> object:
    try:
        return array[i : i + 1].cast(column.type)[0].as_py()
    except UnicodeDecodeError:
        bad.setdefault(i, f"'{column.name}' is not valid UTF-8")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        bad.setdefault(i, column.refusal(array[i].as_py()))
        unread.update([i] if column.decides else [])
    return None


def column_types(file: SourceFile, schema: pa.Schema, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns, after checking that the fields exist."""
    check_schema(file, schema, fields)
    chosen = chosen_types(fields)
    return {name: chosen.get(name) or type_text(plain_type(schema.field(name).type)) for name in column_names(fields)}


def check_schema(file: SourceFile, schema: pa.Schema, fields: Fields) -> None:
    template = TextTemplate.parse(fields.text)
    for name in (*template.names, *column_names(fields)):
        if schema.names.count(name) > 1:
            raise SourceError(f"{file_name(file.place)} has two columns named {name!r}.", hint="Rename one of them.")
        if name not in schema.names:
            raise no_field(name, file_name(file.place), schema.names)
    if template.single and not pa.types.is_string(kind := plain_type(schema.field(template.names[0]).type)):
        strings = [f.name for f in schema if pa.types.is_string(plain_type(f.type))]
        raise SourceError(
            f"{template.names[0]!r} in {file_name(file.place)} has type {kind}, not text.",
            hint=f"Fields that hold text: {', '.join(strings) or 'none'}.",
        )


def check_names(file: SourceFile, schema: pa.Schema) -> list[str]:
    """The names of all columns; refuses a file with two columns of the same name."""
    names: list[str] = schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"{file_name(file.place)} has two columns named {twice!r}.", hint="Rename one of them.")
    return names


def iter_batch_rows(file: SourceFile, batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[tuple[Row, int]]:
    """Yield whole rows of a file with `rows` rows, each with the bytes of the file read so far, estimated."""
    done = 0
    for batch in batches:
        try:
            found = batch.to_pylist()
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{file_name(file.place)}: a row after row {done:,} is not valid UTF-8.",
                hint="Write it in UTF-8.",
            ) from error
        for row in found:
            done += 1
            yield row, file.size_bytes * done // rows


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without its encoding: dictionaries decoded, all string types the same."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_null(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return kind
