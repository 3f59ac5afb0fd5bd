"""The rows of a result as a torch Dataset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa
import torch
from torch.utils.data import Dataset
from torch.utils.dlpack import from_dlpack

from shardmill.sinks.parquet import is_vector, vectors


class TorchRows(Dataset[dict[str, Any]]):
    """Each row by its number, as a dict by column: vectors as tensors, other values as Python has them.

    A missing vector is a tensor of NaN; any other null is None, which torch's default_collate refuses. Tensors share
    the memory of the result: clone one before you write into it.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._ends = list(accumulate(len(chunk) for chunk in table.column(0).chunks))
        self._tensors = {
            field.name: [_tensor(chunk) for chunk in table.column(field.name).chunks]
            for field in table.schema
            if is_vector(field.type)
        }

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> dict[str, Any]:
        number = row + len(self) if row < 0 else row
        if not 0 <= number < len(self):
            raise IndexError(f"row {row} of {len(self):,}")
        chunk = bisect_right(self._ends, number)
        at = number - (self._ends[chunk - 1] if chunk else 0)
        return {name: self._value(name, chunk, at) for name in self._table.column_names}

    def _value(self, name: str, chunk: int, at: int) -> Any:
        if name in self._tensors:
            return self._tensors[name][chunk][at]
        return self._table.column(name).chunk(chunk)[at].as_py()


def _tensor(chunk: pa.FixedSizeListArray) -> torch.Tensor:
    """The vectors of a chunk, as a view unless some are missing."""
    if chunk.null_count or not len(chunk):
        return torch.from_numpy(vectors(chunk).copy())
    dims = chunk.type.list_size
    # NumPy's view of Arrow's memory is read-only, which torch warns of.
    return from_dlpack(chunk.values.slice(chunk.offset * dims, len(chunk) * dims)).reshape(-1, dims)
