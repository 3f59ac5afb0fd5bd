"""The fields that files have, for those who choose among them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shardmill.core.arrowtypes import arrow_type
from shardmill.plan import ITEM
from shardmill.sources.base import Reader, SourceStat
from shardmill.sources.columns import infer_type
from shardmill.sources.formats import find_format, find_reader


def list_fields(stat: SourceStat) -> dict[str, pa.DataType]:
    """The names and types of all fields: of the schema, of a header, or of sampled rows."""
    reader: Reader = find_reader(stat.format)
    found = reader.sample(stat)
    if isinstance(found, pa.Schema):
        return {field.name: field.type for field in found if field.name != ITEM}
    if column := find_format(stat.format).column:
        return {column: pa.string()}
    if found is None:
        first = next((row for file in stat.files if file.size_bytes for row, _ in reader.iter_rows(stat, file)), {})
        found = [first] if isinstance(first, dict) else []
    return {name: _type_of([row.get(name) for row in found]) for name in dict.fromkeys(n for row in found for n in row)}


def _type_of(values: Sequence[object]) -> pa.DataType:
    if any(isinstance(value, list) for value in values):
        return pa.list_(pa.float64())
    return arrow_type(infer_type(values))
