"""Types of columns as tables of files have them: no unsigned numbers, no half floats, vectors as lists."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from shardmill.core.errors import UsageError

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.null(): pa.string(),
}


def stored_schema(address: str, schema: pa.Schema) -> pa.Schema:
    """The columns as a table of files stores them; a type that it cannot hold is refused."""
    return pa.schema([pa.field(field.name, _stored(address, field.name, field.type)) for field in schema])


def as_delivered(rows: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of a table of files with the columns that were delivered to it."""
    columns = [
        pa.chunked_array([pa.nulls(rows.num_rows)])
        if field.type == pa.null()
        else rows.column(field.name).cast(field.type)
        for field in schema
    ]
    yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _stored(address: str, name: str, kind: pa.DataType) -> pa.DataType:
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_dictionary(kind):
        return _stored(address, name, kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _stored(address, name, kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _stored(address, name, f.type)) for f in kind])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_uint64(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_map(kind):
        raise UsageError(
            f"{address}: the column {name} is {kind}, which such a table cannot hold.",
            hint="Keep it as text (--keep NAME:string), or write a file: shardmill merge RUN --out FILE.parquet",
        )
    return kind
