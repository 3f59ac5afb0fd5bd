"""Values in the type that the plan has for their column. What would lose a part of itself there is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types


def fit_values(values: Sequence[Any], field: pa.Field, call: str) -> pa.Array:
    """Values of Python as a column. Raises ValueError if one does not fit: Arrow alone makes 1 of 1.5."""
    try:
        if not _may_lose(field.type):
            return pa.array(values, field.type)
        if _is_list(field.type) and any(isinstance(value, str | bytes) for value in values):
            raise ValueError("a text is not a list")
        try:
            found = pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return pa.array(values, field.type)
        if found.type == field.type:
            return found
        made = pa.array(values, field.type)
        _check(found, field.type)
        return made
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _misfit(field, call, error) from error


def cast_column(column: pa.ChunkedArray, field: pa.Field, call: str) -> pa.ChunkedArray:
    """A column of a frame in the type of the plan. Raises ValueError if a value does not fit."""
    try:
        return _check(column, field.type)
    except (pa.ArrowException, ValueError) as error:
        raise _misfit(field, call, error) from error


def _check(found: Any, kind: pa.DataType) -> Any:
    if lost := _lost(found.type, kind):
        raise ValueError(lost)
    return found.cast(kind)


def _misfit(field: pa.Field, call: str, why: Exception) -> ValueError:
    said = f'@shardmill.task(columns={{"{field.name}": TYPE, …}})'
    return ValueError(f"{call}: a value of the column {field.name!r} is not {field.type}: {why}. Another type: {said}")


def _may_lose(kind: pa.DataType) -> bool:
    """Whether Arrow takes a value for this type that loses a part of itself in it."""
    if _is_list(kind):
        return _may_lose(kind.value_type) or bool(types.is_string(kind.value_type))
    return bool(types.is_integer(kind) or types.is_temporal(kind) or types.is_struct(kind))


def _lost(found: pa.DataType, kind: pa.DataType) -> str:
    """What a safe cast would drop without a word; nothing if it would not."""
    if types.is_struct(found) and types.is_struct(kind):
        names = {each.name for each in kind}
        if more := [each.name for each in found if each.name not in names]:
            return f"it has the fields {', '.join(more)} more"
        return next(filter(None, (_lost(each.type, kind.field(each.name).type) for each in found)), "")
    if _is_list(found) and _is_list(kind):
        return _lost(found.value_type, kind.value_type)
    if types.is_timestamp(found) and types.is_date(kind):
        return "it has a time of day"
    if types.is_boolean(kind) and not (types.is_boolean(found) or types.is_null(found)):
        return f"it is {found}"
    return ""


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
