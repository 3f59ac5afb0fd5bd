"""Avro's types as Arrow's: what a column of a schema becomes, and how the values that are decoded get there.

What Arrow has no type for is text: of a union of several kinds, and of a record inside itself, texts as they are and
other values as JSON, as in JSON Lines.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from shardmill.sources.avro.blocks import BadBlocks, library
from shardmill.sources.tables.columns import FIELD_ID

Convert = Callable[[Any], Any]

_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_MOST_DIGITS = 76
_DIGITS = decimal.Context(prec=_MOST_DIGITS)


class AvroColumn(NamedTuple):
    """The type of a column, and what its decoded values need to become that; None if nothing."""

    type: pa.DataType
    convert: Convert | None = None

    def array(self, values: Sequence[Any]) -> pa.Array:
        given = values if self.convert is None else [None if each is None else self.convert(each) for each in values]
        try:
            return pa.array(given, self.type)
        except UnicodeEncodeError:
            if self.type != pa.string():
                raise
            # Rows find text that is not UTF-8, if it is as it was.
            packed = [None if each is None else each.encode(errors="surrogateescape") for each in given]
            return pa.array(packed, pa.binary()).view(self.type)


class Columns:
    """The columns of a file by its schema; `schema` is what its records are decoded by."""

    def __init__(self, written: Any) -> None:
        named: dict[str, Any] = {}
        try:
            whole = library().parse_schema(_without(written, "default"), named)
            self.schema = library().parse_schema(_without(written, "default", "logicalType"))
            if not isinstance(whole, dict) or whole.get("type") not in ("record", "error"):
                raise BadBlocks("its items are not records")
            self.columns = {field["name"]: _column(field["type"], named, (whole["name"],)) for field in whole["fields"]}
            self.arrow = pa.schema([_field(field, self.columns[field["name"]]) for field in whole["fields"]])
        except (library().schema.SchemaParseException, LookupError, TypeError, ValueError, RecursionError) as error:
            raise BadBlocks(f"its schema cannot be read ({type(error).__name__}: {error})") from error

    def batch(self, records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> pa.RecordBatch:
        """These columns of the records."""
        if not names:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), pa.struct([])))
        arrays = [self.columns[name].array([record[name] for record in records]) for name in names]
        return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _without(schema: Any, *keys: str) -> Any:
    """The schema without these keys. In a union of several kinds, values keep what tells a date from a number."""
    if isinstance(schema, list):
        mixed = sum(each != "null" for each in schema) > 1
        return [_without(each, *(key for key in keys if not mixed or key != "logicalType")) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _without(value, *keys) for key, value in schema.items() if key not in (*keys, "fields")}
    return {**found, "fields": [_without(field, *keys) for field in schema["fields"]]} if "fields" in schema else found


def _column(schema: Any, named: Mapping[str, Any], inside: tuple[str, ...]) -> AvroColumn:
    if isinstance(schema, list):
        return _union([each for each in schema if each != "null"], named, inside)
    if isinstance(schema, str):
        if schema in inside:
            return _AS_JSON
        return AvroColumn(_PLAIN[schema]) if schema in _PLAIN else _column(named[schema], named, inside)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _column(kind, named, inside)
    if (found := _LOGICAL.get((kind, schema.get("logicalType")))) is not None:
        return AvroColumn(found)
    if schema.get("logicalType") == "decimal" and (scaled := _decimal(schema)) is not None:
        return scaled
    match kind:
        case "fixed":
            return AvroColumn(pa.binary(schema["size"]))
        case "array":
            item = _column(schema["items"], named, inside)
            return AvroColumn(pa.list_(item.type), _each(item.convert))
        case "record" | "error":
            return _record(schema, named, inside)
    if "values" in schema:
        item = _column(schema["values"], named, inside)
        return AvroColumn(pa.map_(pa.string(), item.type), _pairs(item.convert))
    return _column(kind, named, inside)


def _field(schema: Any, column: AvroColumn) -> pa.Field:
    """A field, with the id that it has in files of a table."""
    id = schema.get("field-id")
    return pa.field(schema["name"], column.type, metadata=None if id is None else {FIELD_ID: str(id)})


def _record(schema: Any, named: Mapping[str, Any], inside: tuple[str, ...]) -> AvroColumn:
    if schema["name"] in inside:
        return _AS_JSON
    fields = {each["name"]: _column(each["type"], named, (*inside, schema["name"])) for each in schema["fields"]}
    changed = {name: column.convert for name, column in fields.items() if column.convert is not None}

    def convert(record: Any) -> Any:
        return {**record, **{name: _apply(change, record[name]) for name, change in changed.items()}}

    kind = pa.struct([_field(each, fields[each["name"]]) for each in schema["fields"]])
    return AvroColumn(kind, convert if changed else None)


def _union(kinds: Sequence[Any], named: Mapping[str, Any], inside: tuple[str, ...]) -> AvroColumn:
    """Of one kind, it; of numbers, the wider one; else text."""
    found = [_column(each, named, inside) for each in kinds]
    if len(found) <= 1:
        return found[0] if found else AvroColumn(pa.null())
    types = {column.type for column in found}
    if types == {pa.int32(), pa.int64()}:
        return AvroColumn(pa.int64())
    if types <= {pa.int32(), pa.int64(), pa.float32(), pa.float64()}:
        return AvroColumn(pa.float64())
    return AvroColumn(found[0].type) if len(types) == 1 and found[0].type in _PLAIN.values() else _AS_JSON


def _decimal(schema: Any) -> AvroColumn | None:
    """A decimal, unless its schema makes none, as Avro has it."""
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    whole = isinstance(digits, int) and isinstance(scale, int) and schema["type"] in ("bytes", "fixed")
    if not whole or not 0 <= scale <= digits or not 1 <= digits <= _MOST_DIGITS:
        return None

    def convert(value: Any) -> decimal.Decimal:
        if isinstance(value, decimal.Decimal):
            return value
        return _DIGITS.scaleb(int.from_bytes(value, "big", signed=True), -scale)

    return AvroColumn(pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale), convert)


def _each(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda values: [_apply(convert, each) for each in values]


def _pairs(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda values: [*values.items()]
    return lambda values: [(key, _apply(convert, each)) for key, each in values.items()]


def _apply(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_as_text)


def _as_text(value: Any) -> str:
    """What JSON has no type for; bytes as Avro writes them in JSON."""
    if isinstance(value, bytes):
        return value.decode("latin1")
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)


_AS_JSON = AvroColumn(pa.string(), _as_json)
