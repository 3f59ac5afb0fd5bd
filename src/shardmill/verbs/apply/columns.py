"""The columns that a function returns: as it declares them, or as its first result has them."""

from __future__ import annotations

import datetime
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.arrowtypes import arrow_type
from shardmill.core.errors import SourceError, SpecError
from shardmill.plan import ITEM, ROW, WINDOW
from shardmill.verbs.apply.results import Given, as_table, hints_of, is_list, list_rows, order_rows, signature_of

_KINDS = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us"),
}
_NAME_THEM = 'Say them: @shardmill.task(columns={"words": "int64"}), or return a list of a TypedDict.'
_TYPES = (
    f"Use {', '.join(kind.__name__ for kind in _KINDS)}, a list such as list[str], a TypedDict, a name such as "
    '"int64", or a type of pyarrow.'
)
_PLAIN_VALUES = "Return texts, numbers, dates, lists or dicts, of one kind in each column."


def columns_by_annotation(made: Any, call: str) -> dict[str, pa.DataType] | None:
    """The columns in the attribute `columns`, or those of a TypedDict in the return annotation; None if it has none."""
    said = getattr(made, "columns", None)
    if isinstance(said, pa.Schema):
        return {field.name: field.type for field in said}
    if isinstance(said, Mapping):
        return {str(name): _said_type(kind, str(name), call) for name, kind in said.items()}
    if isinstance(said, list | tuple | set | str):
        raise SpecError(f"{call} names columns without their types: {said!r}.", hint=_NAME_THEM)
    function = made.__call__ if inspect.isclass(made) else made
    if signature_of(function, call).return_annotation is inspect.Signature.empty:
        return None
    row = _find_row(hints_of(function, call).get("return"))
    if row is None:
        return None
    return {name: _said_type(kind, name, call) for name, kind in get_type_hints(row).items()}


def _find_row(annotation: Any) -> Any:
    """The TypedDict in an annotation such as list[Row | None]."""
    if is_typeddict(annotation):
        return annotation
    return next(filter(None, map(_find_row, get_args(annotation))), None)


def _said_type(kind: Any, name: str, call: str) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if isinstance(kind, str):
        try:
            return arrow_type(kind)
        except SourceError as error:
            raise SpecError(f"{call}: the column {name!r} has the type {kind!r}.", hint=_TYPES) from error
    if is_typeddict(kind):
        return pa.struct([(part, _said_type(each, name, call)) for part, each in get_type_hints(kind).items()])
    if get_origin(kind) in (Union, types.UnionType):
        others = [each for each in get_args(kind) if each is not type(None)]
        if len(others) == 1:
            return _said_type(others[0], name, call)
    if get_origin(kind) in (list, Sequence, tuple) and (inner := get_args(kind)):
        return pa.list_(_said_type(inner[0], name, call))
    if isinstance(kind, type) and kind in _KINDS:
        return _KINDS[kind]
    raise SpecError(f"{call}: the column {name!r} has the type {kind}.", hint=_TYPES)


def columns_of(results: Sequence[tuple[int, Any]], given: Given, call: str) -> dict[str, pa.DataType]:
    """The columns of first results, each with the number of its items, if they tell the type of every value."""
    if is_list(results[0][1], given):
        found = _columns_of_rows([row for items, each in results for row in list_rows(each, items, call)[0]], call)
    else:
        found = _columns_of_frame(*results[0], call)
    if not found:
        raise SpecError(f"{call} returned rows without a column.", hint=_NAME_THEM)
    for name, kind in found.items():
        if _has_null(kind):
            raise SpecError(f"{call}: the column {name!r} is {kind} in the first result.", hint=_NAME_THEM)
    return found


def check_columns(columns: Mapping[str, pa.DataType], call: str) -> None:
    """Refuse names that a result has of its own, and types that no file can hold."""
    if taken := [name for name in (ROW, WINDOW, ITEM) if name in columns]:
        raise SpecError(
            f"{call} returns a column {taken[0]!r}, which a result has of its own.", hint="Give it another name."
        )
    if not columns:
        raise SpecError(f"{call} names no column.", hint=_NAME_THEM)
    for name, kind in columns.items():
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([(name, kind)])).close()
        except pa.ArrowException as error:
            raise SpecError(
                f"{call}: the column {name!r} cannot be written as {kind}: {error}", hint=_PLAIN_VALUES
            ) from error


def _columns_of_frame(items: int, result: Any, call: str) -> dict[str, pa.DataType]:
    try:
        table = as_table(result, call)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"The first result of {call} is not a table: {error}.", hint=_PLAIN_VALUES) from error
    names = table.schema.names
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise SpecError(f"{call} returned two columns {twice[0]!r}.", hint="Give each a name of its own.")
    order_rows(table, items, call)
    return {field.name: _plain(field.type) for field in table.schema if field.name != ROW}


def _columns_of_rows(rows: Sequence[Mapping[Any, Any]], call: str) -> dict[str, pa.DataType]:
    if not rows:
        raise SpecError(f"{call} returned no row for the first items of the source.", hint=_NAME_THEM)
    if len({frozenset(row) for row in rows}) > 1:
        raise SpecError(f"{call} returned rows with different columns in its first result.", hint=_NAME_THEM)
    found = {}
    for name in rows[0]:
        if not isinstance(name, str):
            raise SpecError(f"{call} returned a column named {name!r}, which is not text.", hint=f'Name it "{name}".')
        try:
            found[name] = pa.array([row[name] for row in rows]).type
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SpecError(
                f"{call}: the column {name!r} of its first result has no one type: {error}.", hint=_PLAIN_VALUES
            ) from error
    return found


def _has_null(kind: pa.DataType) -> bool:
    """Whether no value has told a part of this type, as for lists that are all empty."""
    return bool(pa.types.is_null(kind)) or any(_has_null(kind.field(i).type) for i in range(kind.num_fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type that files and tables have: of a dictionary that of its values, and one kind of text."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return pa.list_(_plain(kind.value_type)) if pa.types.is_large_list(kind) else kind
