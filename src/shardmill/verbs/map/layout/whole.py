"""Directions as whole numbers, whose products are exact in any order of summation.

A direction is scaled to length 3,900 and rounded. Each part of the product of two of them is then an integer below
2**24 (by Cauchy-Schwarz), which float32 holds exactly: a matrix product gives the same bits on any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import SourceError

LENGTH = 3_900.0
# Beyond this, rounding could make a vector too long for exact products.
_MOST_DIMS = 32_768

Whole = NDArray[np.int16]
Reals = NDArray[np.float32]


def as_matrix(column: pa.Array, dims: int | None = None) -> Reals:
    """A column of vectors as a matrix with NaN for missing ones: lists of numbers, or texts like `[0.1, 0.2]`.

    `dims` is the width that all must have; without it, the first vector gives it.
    """
    kind = column.type
    if pa.types.is_fixed_size_list(kind) and dims in (None, kind.list_size):
        flat = column.values.to_numpy(zero_copy_only=False)
        wide = kind.list_size
        matrix = flat[column.offset * wide : (column.offset + len(column)) * wide].reshape(len(column), wide)
        found = np.array(matrix, np.float32) if column.null_count or matrix.dtype != np.float32 else matrix
        if column.null_count:
            found[column.is_null().to_numpy(zero_copy_only=False)] = np.nan
        return np.asarray(found, np.float32)
    rows = [_parse(value) for value in column.to_pylist()]
    widths = {len(row) for row in rows if row is not None} | ({dims} if dims else set())
    if len(widths) > 1:
        raise SourceError(
            f"The vectors have different widths: {', '.join(map(str, sorted(widths)))}.",
            hint="Embed all items with one model, and name that column: --vector COLUMN",
        )
    wide = widths.pop() if widths else 0
    found = np.full((len(rows), wide), np.nan, np.float32)
    for i, row in enumerate(rows):
        if row is not None:
            found[i] = row
    return found


def _parse(value: Any) -> Reals | None:
    if value is None:
        return None
    try:
        numbers = value.strip().strip("[]{}()").split(",") if isinstance(value, str) else value
        return np.asarray(numbers, np.float32)
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"{str(value)[:40]!r} is not a vector.", hint="Name the column with the vectors: --vector COLUMN"
        ) from error


def to_whole(matrix: Reals) -> tuple[Whole, NDArray[np.bool_]]:
    """The rounded directions, and which rows have one: a vector with NaN or without length has none and is zero."""
    if matrix.shape[1] > _MOST_DIMS:
        raise SourceError(f"The vectors have {matrix.shape[1]:,} dimensions; a map takes up to {_MOST_DIMS:,}.")
    from shardmill.verbs.map.layout.kernels import round_directions

    whole: Whole
    usable: NDArray[np.bool_]
    whole, usable = round_directions(np.ascontiguousarray(matrix, np.float32), LENGTH)
    return whole, usable


def project(whole: Whole, axes: Whole) -> Whole:
    """Coordinates along axes, which are directions as whole numbers; exact, and whole numbers again."""
    products = whole.astype(np.float32) @ axes.astype(np.float32).T
    found: Whole = np.rint(products / np.float32(LENGTH)).astype(np.int16)
    return found
