"""The columns that a function returns: as it declares them, or as its first result has them."""

from __future__ import annotations

import datetime
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import pyarrow as pa

from shardmill.arrowtypes import arrow_type
from shardmill.errors import SpecError
from shardmill.plan import ROW
from shardmill.tasks.apply.results import Given, as_table, check_list, hints_of, is_list, rows_of

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


def columns_by_annotation(made: Any, call: str) -> dict[str, pa.DataType] | None:
    """The columns in the attribute `columns`, or those of a TypedDict in the return annotation; None if it has none."""
    said = getattr(made, "columns", None)
    if isinstance(said, pa.Schema):
        return {field.name: field.type for field in said}
    if isinstance(said, Mapping):
        return {str(name): _said_type(kind, str(name), call) for name, kind in said.items()}
    function = made.__call__ if inspect.isclass(made) else made
    if inspect.signature(function).return_annotation is inspect.Signature.empty:
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
        return arrow_type(kind)
    if get_origin(kind) in (Union, types.UnionType):
        others = [each for each in get_args(kind) if each is not type(None)]
        if len(others) == 1:
            return _said_type(others[0], name, call)
    if get_origin(kind) in (list, Sequence, tuple) and (inner := get_args(kind)):
        return pa.list_(_said_type(inner[0], name, call))
    if kind in _KINDS:
        return _KINDS[kind]
    raise SpecError(f"{call}: the column {name!r} has the type {kind}.", hint="Use a Python or an Arrow type.")


def columns_of(results: list[Any], items: int, given: Given, call: str) -> dict[str, pa.DataType]:
    """The columns of first results; refuses those whose rows differ and columns that are null in all of them."""
    try:
        found = _schema_of(results, items, given, call)
    except (pa.ArrowException, TypeError) as error:
        raise SpecError(f"The first result of {call} has no columns: {error}.", hint=_NAME_THEM) from error
    if not found:
        raise SpecError(f"{call} returned rows without a column.", hint=_NAME_THEM)
    for name, kind in found.items():
        if pa.types.is_null(kind):
            raise SpecError(f"{call}: the column {name!r} is null in the first result.", hint=_NAME_THEM)
    return found


def _schema_of(results: list[Any], items: int, given: Given, call: str) -> dict[str, pa.DataType]:
    if not is_list(results[0], given):
        first = as_table(results[0], call).schema
        return {field.name: _plain(field.type) for field in first if field.name != ROW}
    rows = [row for result in results for entry in check_list(result, items, call) for row in rows_of(entry, call)]
    if not rows:
        raise SpecError(f"{call} returned no row for the first items of the source.", hint=_NAME_THEM)
    if len({frozenset(row) for row in rows}) > 1:
        raise SpecError(f"{call} returned rows with different columns in its first result.", hint=_NAME_THEM)
    return {str(name): pa.array([row[name] for row in rows]).type for name in rows[0]}


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type that files and tables have: of a dictionary that of its values, and one kind of text."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return pa.list_(_plain(kind.value_type)) if pa.types.is_large_list(kind) else kind
