"""The vectors of a result as they are stored: numbers, or bytes and bits that stand for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.arrowtypes import numpy_dtype
from shardmill.core.quantised import Quantiser
from shardmill.sinks.parquet import is_vector, vectors


@dataclass(frozen=True)
class StoredVectors:
    """A column of vectors; with a `quantiser` they are bytes."""

    field: pa.Field
    quantiser: Quantiser | None = None

    @classmethod
    def find(cls, schema: pa.Schema, kept: Collection[str]) -> StoredVectors | None:
        """The column that the task made; one that was kept from the source does not count."""
        for field in schema:
            if field.name in kept:
                continue
            if is_vector(field.type):
                return cls(field)
            if (quantiser := Quantiser.of_field(field)) is not None:
                return cls(field, quantiser)
        return None

    @property
    def name(self) -> str:
        return str(self.field.name)

    @property
    def dims(self) -> int:
        """The numbers of a vector."""
        return int(self.field.type.list_size) if self.quantiser is None else self.quantiser.dims

    @property
    def type(self) -> str:
        """What they are called: `float16`, `int8`, `binary`, …."""
        return self.dtype.name if self.quantiser is None else self.quantiser.dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of their matrix."""
        if self.quantiser is not None:
            return self.quantiser.stored
        return numpy_dtype(self.field.type.value_type)

    @property
    def width(self) -> int:
        """The columns of their matrix."""
        return self.dims if self.quantiser is None else self.quantiser.width

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def read(self, column: pa.Array) -> NDArray[Any]:
        """The rows of the matrix: with NaN for a missing vector, or the byte that stands for it."""
        if (own := self.quantiser) is None:
            return vectors(column)
        rows = column.fill_null(bytes([own.missing % 256]) * own.width)
        return np.frombuffer(rows.buffers()[1], own.stored)[rows.offset * own.width :][: len(rows) * own.width].reshape(
            len(rows), own.width
        )

    def read_floats(self, column: pa.Array) -> NDArray[Any]:
        """The vectors, with NaN for a missing one."""
        found = self.read(column)
        return found if self.quantiser is None else self.quantiser.decode(found)
