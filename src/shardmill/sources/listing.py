"""The columns that a source has, for those who choose among them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shardmill.arrowtypes import arrow_type
from shardmill.plan import ITEM
from shardmill.sources import Fields, SourceStat, discover
from shardmill.sources.columns import infer_type
from shardmill.sources.formats import find_format
from shardmill.sources.range import COLUMN, is_range
from shardmill.template import NO_TEXT


def list_columns(places: Sequence[str], format: str | None = None, query: str = "") -> dict[str, pa.DataType]:
    """The names and types of all columns, from the schema of a source or from its first rows."""
    if query:
        from shardmill.sources.sql import open_database
        from shardmill.sources.sql.query import check_query

        with open_database(places[0]).open() as session:
            return {name: arrow_type(kind or "string") for name, kind in session.describe(check_query(query))}
    if any(map(is_range, places)):
        return {COLUMN: pa.uint64()}
    stat = discover(places, Fields(NO_TEXT), format)
    found = find_format(stat.format).reader().sample(stat)
    if isinstance(found, list):
        names = dict.fromkeys(name for row in found for name in row)
        lists = {name for row in found for name, value in row.items() if isinstance(value, list)}
        kinds = {name: pa.list_(pa.float64()) if name in lists else None for name in names}
        return {n: kind or arrow_type(infer_type(row.get(n) for row in found)) for n, kind in kinds.items()}
    if found is None:
        return dict.fromkeys(_names_of_texts(stat), pa.string())
    return {field.name: field.type for field in found if field.name != ITEM}


def _names_of_texts(stat: SourceStat) -> list[str]:
    """The columns of a format in which every field is a text: those of its first row."""
    if stat.format == "text":
        return ["text"]
    reader = find_format(stat.format).reader()
    rows = (row for file in stat.files if file.size_bytes for row, _ in reader.iter_rows(stat, file))
    return [name for name in next(rows, {}) if isinstance(name, str)]
