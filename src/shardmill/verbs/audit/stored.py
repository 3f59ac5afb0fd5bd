"""Vectors as they are stored: lists of numbers of any type, texts like `[0.1, 0.2]`, or a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.errors import SourceError, UsageError
from shardmill.verbs.audit.rows import Column

_BRACKETS = "[](){} \t\r\n"


def matrices(column: Column) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """The vectors, one matrix per number of dimensions, each with the places of its rows; missing ones are left out."""
    if isinstance(column, np.ndarray):
        yield np.arange(len(column)), column
        return
    lists = _as_lists(column)
    rows = np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False))
    if len(rows) < len(lists):
        lists = lists.drop_null()
    if not len(rows):
        return
    widths, flat = _widths(lists), _numbers(lists.flatten())
    if (widths == widths[0]).all():
        yield rows, flat.reshape(len(rows), widths[0])
        return
    starts = np.concatenate([[0], np.cumsum(widths)[:-1]])
    for width in np.unique(widths):
        own = widths == width
        yield rows[own], flat[starts[own][:, None] + np.arange(width)]


def _as_lists(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        try:
            parts = pc.split_pattern(pc.utf8_trim(column, characters=_BRACKETS), ",")
            numbers = pc.utf8_trim_whitespace(parts.flatten()).cast(pa.float32())
            return pa.ListArray.from_arrays(_offsets(parts), numbers)
        except pa.ArrowInvalid as error:
            raise no_vectors(str(column.drop_null()[0])) from error
    kind = column.type
    listed = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed:
        raise no_vectors(str(kind))
    return column


def _offsets(lists: pa.ListArray) -> pa.Array:
    """The starts of lists, from zero; a missing one stays missing."""
    starts = np.concatenate([[0], np.cumsum(_widths(lists))]).astype(np.int32)
    missing = np.append(lists.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(starts, mask=missing)


def _widths(lists: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_fixed_size_list(lists.type):
        return np.full(len(lists), lists.type.list_size, np.int64)
    found: NDArray[np.int64] = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _numbers(flat: pa.Array) -> NDArray[Any]:
    """The numbers of all lists, NaN for a missing one."""
    kind = flat.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise no_vectors(f"lists of {kind}")
    numbers: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return numbers


def no_vectors(seen: str) -> SourceError:
    return SourceError(f"{seen[:60]!r} is no vector.", hint="Name the column with the vectors: --column COLUMN")


def choose_column(columns: Mapping[str, pa.DataType], *, in_database: bool) -> str:
    """The only column that can have vectors. Databases do not say which: there it is `embedding`."""
    found = [name for name, kind in columns.items() if _is_vectors(kind)]
    if len(found) == 1:
        return found[0]
    if "embedding" in columns and (in_database or not found):
        return "embedding"
    if found:
        raise UsageError(f"Several columns have vectors: {', '.join(found)}.", hint="Name one: --column COLUMN")
    raise UsageError(
        "No column has vectors.",
        hint=f"Name it: --column COLUMN (there are {', '.join(columns)}), or give --vectors FILE.npy.",
    )


def _is_vectors(kind: pa.DataType) -> bool:
    listed = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(listed and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))
