"""Lists and iterators of strings or dicts, as Arrow batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from shardmill.core.errors import SourceError
from shardmill.sources import kinds

_TEXT = kinds.TEXT.column
_ROWS, _BYTES = 8192, 16 << 20
_REFUSED = (pa.ArrowException, TypeError, ValueError, OverflowError)


class _Chunk(NamedTuple):
    """Some rows, all dicts, and the number of rows before them."""

    rows: Sequence[Mapping[str, Any]]
    before: int


def first_row(rows: Iterator[Any], what: str) -> tuple[Any, Iterator[Any]]:
    """The first row of an iterator, and the iterator as it was."""
    for row in _numbered(rows, what):
        return row[1], chain([row[1]], rows)
    return None, iter(())


def batch_rows(rows: Iterable[Any], what: str, *, is_list: bool) -> Iterator[pa.RecordBatch]:
    """The rows in batches. The columns of a list are those of all its rows, of an iterator those of the first batch."""
    schema = _schema_of_all(rows, what) if is_list else None
    for chunk in _chunks(rows, what):
        schema = schema or _settled(_schema_of(chunk, what))
        yield _make_batch(chunk, schema, what)


def _chunks(rows: Iterable[Any], what: str) -> Iterator[_Chunk]:
    waiting: list[Mapping[str, Any]] = []
    before = size = 0
    kind: type | None = None
    for number, row in _numbered(rows, what):
        if kind is None and row is not None:
            kind = str if isinstance(row, str) else dict
        waiting.append(_as_dict(row, kind, number, what))
        size += sum(len(value) for value in waiting[-1].values() if isinstance(value, str | bytes | list))
        if len(waiting) >= _ROWS or size >= _BYTES:
            yield _Chunk(waiting, before)
            before, waiting, size = number, [], 0
    if waiting:
        yield _Chunk(waiting, before)


def _numbered(rows: Iterable[Any], what: str) -> Iterator[tuple[int, Any]]:
    """The rows with their numbers from 1; what an iterator raises says at which row."""
    number, found = 0, iter(rows)
    while True:
        number += 1
        try:
            row = next(found)
        except StopIteration:
            return
        except Exception as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise SourceError(
                f"{what} raised {type(error).__name__} at row {number:,}{reason and f': {reason}'}.",
                hint="Nothing was begun. Repair it, and run the same again.",
            ) from error
        yield number, row


def _as_dict(row: Any, kind: type | None, number: int, what: str) -> Mapping[str, Any]:
    if isinstance(row, str) and kind is str:
        return {_TEXT: row}
    if row is None and kind is not dict:
        return {_TEXT: None}
    if isinstance(row, Mapping) and kind is dict:
        if wrong := next((name for name in row if not isinstance(name, str)), None):
            raise SourceError(f"{what}: row {number:,} has the key {wrong!r}.", hint="Keys are names of columns.")
        return row
    raise SourceError(
        f"{what}: row {number:,} is of type {type(row).__name__}, not {'str' if kind is str else 'dict'}.",
        hint="Give strings alone, or dicts alone.",
    )


def _schema_of_all(rows: Iterable[Any], what: str) -> pa.Schema:
    schema = pa.schema([])
    for chunk in _chunks(rows, what):
        try:
            schema = pa.unify_schemas([schema, _schema_of(chunk, what)], promote_options="permissive")
        except pa.ArrowException as error:
            raise SourceError(
                f"{what}: a column has one type up to row {chunk.before:,} and another after it: {error}.",
                hint="Give values of one type in each column.",
            ) from error
    return _settled(schema)


def _schema_of(chunk: _Chunk, what: str) -> pa.Schema:
    names = dict.fromkeys(name for row in chunk.rows for name in row)
    return pa.schema([(name, _make_column(chunk, name, None, what).type) for name in names])


def _settled(schema: pa.Schema) -> pa.Schema:
    """The schema with strings in columns of which no value is known."""
    return pa.schema([(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in schema])


def _make_batch(chunk: _Chunk, schema: pa.Schema, what: str) -> pa.RecordBatch:
    names = {*schema.names}
    for number, row in enumerate(chunk.rows, chunk.before + 1):
        if new := next((name for name in row if name not in names), None):
            raise SourceError(
                f"{what}: row {number:,} has the column {new!r}, which the first {_ROWS:,} rows lack.",
                hint="Give the first dict all columns, with None where there is no value.",
            )
    return pa.record_batch([_make_column(chunk, f.name, f.type, what) for f in schema], schema=schema)


def _make_column(chunk: _Chunk, name: str, kind: pa.DataType | None, what: str) -> pa.Array:
    values = [row.get(name) for row in chunk.rows]
    try:
        return pa.array(values, kind, from_pandas=True)
    except _REFUSED as error:
        raise _refused(chunk, name, values, kind, what) from error


def _refused(chunk: _Chunk, name: str, values: Sequence[Any], kind: pa.DataType | None, what: str) -> SourceError:
    """The error that names the first row whose value does not fit those before it."""

    def fails(last: int) -> bool:
        try:
            pa.array(values[: last + 1], kind, from_pandas=True)
        except _REFUSED:
            return True
        return False

    row = bisect_left(range(len(values)), True, key=fails)
    value = values[row]
    return SourceError(
        f"{what}: {name!r} in row {chunk.before + row + 1:,} is a {type(value).__name__}, {str(value)[:40]!r}, which "
        f"does not fit {f'the type {kind} of' if kind else ''} the rows before it.".replace("  ", " "),
        hint="Give values of one type in each column, such as str(…).",
    )
