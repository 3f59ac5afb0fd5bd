"""Arrow tables encoded in COPY's binary format, column by column, never row by row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.errors import DatabaseError
from shardmill.postgres.types import sql_type

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
# Days and microseconds from Arrow's epoch, 1970, to PostgreSQL's, 2000.
_EPOCH_DAYS = 10_957
_EPOCH_US = _EPOCH_DAYS * 86_400_000_000
_DIGEST_BYTES = 16
# What pgvector stores of a sparse vector at most.
_MOST_WEIGHTS = 16_000

# OIDs of the types that have a binary encoding here; the header of an array names the type of its items.
_OIDS = {
    "boolean": 16,
    "bytea": 17,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": 25,
    "real": 700,
    "double precision": 701,
    "date": 1082,
    "time without time zone": 1083,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
}

Encode = Callable[[pa.Array], pa.Array]


def sent_type(kind: pa.DataType) -> str:
    """The SQL type that values of an Arrow type are sent as: text if there is no binary encoding here.

    >>> sent_type(pa.int64()), sent_type(pa.list_(pa.string())), sent_type(pa.decimal128(10, 2))
    ('bigint', 'text[]', 'text')
    """
    sql = sql_type(kind)
    return sql if sql.removesuffix("[]") in _OIDS else "text"


def encode(columns: Sequence[pa.Array], kinds: Sequence[str]) -> bytes:
    """A complete COPY stream of columns of equal length; `kinds` are their SQL types, also those of pgvector."""
    rows = encode_rows(columns, kinds)
    start, stop = rows.offset, rows.offset + len(rows)
    offsets = np.frombuffer(rows.buffers()[1], np.int64)
    data = rows.buffers()[2]
    body = memoryview(data)[offsets[start] : offsets[stop]] if data is not None and len(rows) else b""
    return b"".join((_HEADER, body, _TRAILER))


def encode_rows(columns: Sequence[pa.Array], kinds: Sequence[str]) -> pa.LargeBinaryArray:
    """Each row as COPY encodes it: the number of fields, then each field preceded by its length."""
    count = len(columns[0])
    fields = [_repeat(len(columns).to_bytes(2, "big"), count)]
    for column, kind in zip(columns, kinds, strict=True):
        fields += _fields(column, kind)
    return pc.binary_join_element_wise(*fields, _empty())


def digest_rows(columns: Sequence[pa.Array], kinds: Sequence[str]) -> int:
    """The sum of the rows' digests: it does not depend on their order or on how they are split into batches."""
    return sum(digest_row(row) for row in encode_rows(columns, kinds).to_pylist()) % (1 << 8 * _DIGEST_BYTES)


def digest_row(row: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(row, digest_size=_DIGEST_BYTES).digest(), "big")


def rows_of(stream: Iterable[Any]) -> Iterator[bytes]:
    """The rows that COPY sends, one per message; the first message begins with the header."""
    for i, message in enumerate(stream):
        row = bytes(message)[len(_HEADER) if i == 0 else 0 :]
        if row and row != _TRAILER:
            yield row


def add_digests(digests: Sequence[bytes]) -> bytes:
    """Combine the digests of batches into the digest of all their rows."""
    total = sum(int.from_bytes(d, "big") for d in digests) % (1 << 8 * _DIGEST_BYTES)
    return total.to_bytes(_DIGEST_BYTES, "big")


def _fields(column: pa.Array, kind: str) -> list[pa.Array]:
    """The lengths of a column's fields, and the fields; both in one array if all fields have the same length."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kind in ("vector", "halfvec") and not column.null_count:
        return [_vectors(column, kind, prefixed=True)]
    data = _encoder(kind)(column)
    lengths = pc.binary_length(data).fill_null(-1).to_numpy(zero_copy_only=False).astype(">i4")
    return [_slices(lengths), data.fill_null(b"")]


def _encoder(kind: str) -> Encode:
    if kind.endswith("[]"):
        return lambda column: _arrays(column, kind.removesuffix("[]"))
    if kind in ("vector", "halfvec"):
        return lambda column: _masked(_vectors(column, kind, prefixed=False), column)
    if kind.startswith("sparsevec("):
        return lambda column: _masked(_sparse(column, int(kind[len("sparsevec(") : -1])), column)
    return _SCALARS[kind]


def _vectors(column: pa.FixedSizeListArray, kind: str, *, prefixed: bool) -> pa.Array:
    """pgvector's binary format: the number of dimensions, an unused word, the numbers."""
    dims = column.type.list_size
    number = np.dtype(">f4" if kind == "vector" else ">f2")
    head = [("length", ">i4")] if prefixed else []
    made = np.zeros(len(column), [*head, ("dims", ">i2"), ("unused", ">i2"), ("numbers", number, (dims,))])
    flat = column.values.to_numpy(zero_copy_only=False)[column.offset * dims : (column.offset + len(column)) * dims]
    if prefixed:
        made["length"] = 4 + dims * number.itemsize
    made["dims"] = dims
    with np.errstate(over="ignore"):
        made["numbers"] = flat.reshape(len(column), dims)
    return _slices(made)


def _sparse(column: pa.ListArray, dims: int) -> pa.Array:
    """pgvector's binary format: dimensions, how many numbers there are, an unused word, their indices, the numbers."""
    sizes = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    if (most := int(sizes.max(initial=0))) > _MOST_WEIGHTS:
        raise DatabaseError(
            f"A sparse vector has {most:,} weights, and a sparsevec of pgvector holds {_MOST_WEIGHTS:,}.",
            hint=f"Make the run with --max-active-dims {_MOST_WEIGHTS} or fewer.",
        )
    records = column.flatten()
    head = np.zeros(len(column), [("dims", ">i4"), ("count", ">i4"), ("unused", ">i4")])
    head["dims"], head["count"] = dims, sizes
    indices = records.field(0).to_numpy(zero_copy_only=False).astype(">i4")
    weights = records.field(1).to_numpy(zero_copy_only=False).astype(">f4")
    return pc.binary_join_element_wise(_slices(head), _runs(indices, sizes), _runs(weights, sizes), _empty())


def _runs(values: NDArray[Any], sizes: NDArray[np.int64]) -> pa.Array:
    """The bytes of `sizes` elements of an array after one another."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64) * values.dtype.itemsize
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets), data])


def _arrays(column: pa.Array, item: str) -> pa.Array:
    """One-dimensional arrays: a header with the length, then the items as fields."""
    lists = column.cast(pa.large_list(column.type.value_type))
    lists = pa.LargeListArray.from_arrays(*_compact(lists))
    items = pc.binary_join_element_wise(*_fields(lists.values, item), _empty())
    joined = pc.binary_join(pa.LargeListArray.from_arrays(lists.offsets, items), _empty())
    sizes = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    head = np.zeros(
        len(column), [("dims", ">i4"), ("nulls", ">i4"), ("kind", ">u4"), ("size", ">i4"), ("first", ">i4")]
    )
    head["dims"], head["kind"], head["size"], head["first"] = sizes > 0, _OIDS[item], sizes, 1
    head["nulls"] = lists.values.null_count > 0
    heads = _slices(head)
    heads = pc.if_else(pa.array(sizes > 0), heads, pc.binary_slice(heads, 0, 12))
    return _masked(pc.binary_join_element_wise(heads, joined, _empty()), column)


def _compact(lists: pa.LargeListArray) -> tuple[pa.Array, pa.Array]:
    """Offsets from 0 and the items they delimit, without items of null rows or of rows outside the slice."""
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int64()), lists.flatten()


@cache
def _empty() -> pa.LargeBinaryScalar:
    # Made when needed: pyarrow imports pandas with the first value, half a second.
    return pa.scalar(b"", pa.large_binary())


def _masked(data: pa.Array, column: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), data, None) if column.null_count else data


def _numbers(dtype: str, shift: int = 0, through: pa.DataType | None = None) -> Encode:
    def encode_numbers(column: pa.Array) -> pa.Array:
        values = column if through is None else column.cast(through)
        if through is not None:
            values = values.view(pa.int32() if through == pa.date32() else pa.int64())
        if not pa.types.is_floating(values.type) and not pa.types.is_boolean(values.type):
            values = pc.subtract(values.cast(pa.int64()), shift) if shift else values
        filled = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
        return _masked(_slices(filled.to_numpy(zero_copy_only=False).astype(dtype)), column)

    return encode_numbers


def _texts(column: pa.Array) -> pa.Array:
    if pa.types.is_nested(column.type):
        words = [None if v is None else json.dumps(v, ensure_ascii=False, default=str) for v in column.to_pylist()]
        column = pa.array(words, pa.large_string())
    return column.cast(pa.large_string()).cast(pa.large_binary())


def _bytes(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_binary())


_SCALARS: dict[str, Encode] = {
    "boolean": _numbers("u1"),
    "smallint": _numbers(">i2"),
    "integer": _numbers(">i4"),
    "bigint": _numbers(">i8"),
    "real": _numbers(">f4"),
    "double precision": _numbers(">f8"),
    "date": _numbers(">i4", _EPOCH_DAYS, pa.date32()),
    "time without time zone": _numbers(">i8", 0, pa.time64("us")),
    "timestamp without time zone": _numbers(">i8", _EPOCH_US, pa.timestamp("us")),
    "timestamp with time zone": _numbers(">i8", _EPOCH_US, pa.timestamp("us", "UTC")),
    "text": _texts,
    "bytea": _bytes,
}


def _repeat(value: bytes, count: int) -> pa.Array:
    return _slices(np.frombuffer(value * count, f"V{len(value)}"))


def _slices(values: NDArray[Any]) -> pa.Array:
    """The bytes of each element of a NumPy array, without a copy."""
    width = values.dtype.itemsize
    offsets = np.arange(len(values) + 1, dtype=np.int64) * width
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), [None, pa.py_buffer(offsets), data])
