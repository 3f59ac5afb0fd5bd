"""A column of sparse vectors: a list of records (index, weight) by ascending index, and how many dimensions there are.

Indices begin with 0. The number of dimensions is in the metadata of the column.
"""

from __future__ import annotations

import json

import pyarrow as pa

INDEX, WEIGHT = "index", "weight"
RECORD = pa.struct([pa.field(INDEX, pa.int32(), nullable=False), pa.field(WEIGHT, pa.float32(), nullable=False)])
KIND = pa.list_(pa.field("item", RECORD, nullable=False))
_METADATA = b"shardmill.sparse"


def sparse_field(name: str, dims: int) -> pa.Field:
    """The field of such a column."""
    return pa.field(name, KIND, metadata={_METADATA: json.dumps({"dims": dims}).encode()})


def sparse_dims(field: pa.Field) -> int:
    """The dimensions of a column of sparse vectors; 0 for any other."""
    said = (field.metadata or {}).get(_METADATA)
    return int(json.loads(said)["dims"]) if said is not None and pa.types.is_list(field.type) else 0
