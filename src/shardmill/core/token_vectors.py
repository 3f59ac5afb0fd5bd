"""A column of token vectors: for each row a list with the bytes of its vectors, one item per token.

How many dimensions a vector has, and the type of its numbers, is in the metadata of the column. An item costs
`dims` times two bytes in float16 and nothing more; a list of numbers would be ten times as slow to read from Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

DTYPES = ("float16", "float32")
_METADATA = b"shardmill.token_vectors"


@dataclass(frozen=True, slots=True)
class TokenColumn:
    """The column's name, the dimensions of its vectors, and their type, float16 or float32, little-endian."""

    name: str
    dims: int
    dtype: str

    @classmethod
    def find(cls, schema: pa.Schema, kept: Collection[str] = ()) -> TokenColumn | None:
        """The first such column of a schema that was not `kept` from the source."""
        for field in schema:
            said = (field.metadata or {}).get(_METADATA)
            if said is not None and field.name not in kept and pa.types.is_list(field.type):
                return cls(field.name, **json.loads(said))
        return None

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the numbers as they are stored."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def vector_bytes(self) -> int:
        """The bytes of a vector."""
        return self.dims * self.stored.itemsize

    @property
    def field(self) -> pa.Field:
        """The field of the column."""
        item = pa.field("item", pa.binary(self.vector_bytes), nullable=False)
        said = json.dumps({"dims": self.dims, "dtype": self.dtype}).encode()
        return pa.field(self.name, pa.list_(item), metadata={_METADATA: said})

    def write(self, vectors: NDArray[np.float32], counts: NDArray[np.int64], null: NDArray[np.bool_]) -> pa.Array:
        """The rows as Arrow has them, `counts` vectors each; a row that is null has none."""
        made = np.ascontiguousarray(vectors[np.repeat(~null, counts)], self.stored)
        items = pa.Array.from_buffers(pa.binary(self.vector_bytes), len(made), [None, pa.py_buffer(made)])
        starts = np.concatenate([[0], np.cumsum(np.where(null, 0, counts))]).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(starts), items, type=self.field.type, mask=pa.array(null) if null.any() else None
        )

    def read(self, column: pa.Array) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """All vectors of some rows, and how many each row has; one that is null has none."""
        items = column.flatten()
        return self.read_items(items), column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(int)

    def read_items(self, items: pa.Array) -> NDArray[Any]:
        """The vectors that the items of a row hold."""
        if not len(items):
            return np.zeros((0, self.dims), self.stored)
        numbers = np.frombuffer(items.buffers()[1], np.uint8)[items.offset * self.vector_bytes :]
        return numbers[: len(items) * self.vector_bytes].view(self.stored).reshape(len(items), self.dims)
