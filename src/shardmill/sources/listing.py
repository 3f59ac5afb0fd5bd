"""The columns that a source has, for those who choose among them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shardmill.sources import Fields, discover
from shardmill.sources.columns import arrow_type, infer_type
from shardmill.sources.formats import find_format
from shardmill.template import NO_TEXT


def list_columns(places: Sequence[str], format: str | None = None, query: str = "") -> dict[str, pa.DataType]:
    """The names and types of all columns, from the schema of a source or from its first rows."""
    if query:
        from shardmill.sources.sql import open_database
        from shardmill.sources.sql.query import check_query

        with open_database(places[0]).open() as session:
            return {name: arrow_type(kind or "string") for name, kind in session.describe(check_query(query))}
    stat = discover(places, Fields(NO_TEXT), format)
    found = find_format(stat.format).reader().sample(stat)
    if isinstance(found, list):
        names = dict.fromkeys(name for row in found for name in row)
        lists = {name for row in found for name, value in row.items() if isinstance(value, list)}
        kinds = {name: pa.list_(pa.float64()) if name in lists else None for name in names}
        return {n: kind or arrow_type(infer_type(row.get(n) for row in found)) for n, kind in kinds.items()}
    return {field.name: field.type for field in found or ()}
