"""SQL types for Arrow types, and back."""

from __future__ import annotations

import re

import pyarrow as pa

from shardmill.core.errors import DatabaseError

_SQL: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "integer",
    pa.uint32(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.string_view(): "text",
    pa.null(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
    pa.date64(): "date",
}
_ARROW = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "text": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time without time zone": pa.time64("us"),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


def sql_type(kind: pa.DataType) -> str:
    """The SQL type for values of an Arrow type, as `format_type` writes it. Records become jsonb.

    >>> sql_type(pa.timestamp("ms", "UTC")), sql_type(pa.list_(pa.int32())), sql_type(pa.decimal128(10, 2))
    ('timestamp with time zone', 'integer[]', 'numeric(10,2)')
    """
    if pa.types.is_dictionary(kind):
        return sql_type(kind.value_type)
    if (known := _SQL.get(kind)) is not None:
        return known
    if pa.types.is_timestamp(kind):
        return f"timestamp {'with' if kind.tz else 'without'} time zone"
    if pa.types.is_time(kind):
        return "time without time zone"
    if pa.types.is_decimal(kind) and kind.scale >= 0:
        return f"numeric({max(kind.precision, kind.scale)},{kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return "bytea"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = sql_type(kind.value_type)
        # An SQL array of arrays must be rectangular; a list of lists need not be.
        return "jsonb" if item == "jsonb" or item.endswith("[]") else f"{item}[]"
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "jsonb"
    raise DatabaseError(f"The Arrow type {kind} has no SQL type.", hint="Set another type with --keep name:type.")


def arrow_type(sql: str) -> pa.DataType:
    """The Arrow type for values of an SQL type; a string, which the server parses, if there is none.

    >>> arrow_type("bigint"), arrow_type("text[]"), arrow_type("jsonb")
    (DataType(int64), ListType(list<item: string>), DataType(string))
    """
    if sql.endswith("[]"):
        return pa.list_(arrow_type(sql.removesuffix("[]")))
    if match := _NUMERIC.fullmatch(sql):
        precision, scale = int(match[1]), int(match[2])
        if precision <= 76:
            return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    return _ARROW.get(sql, pa.string())
