"""Row groups of Parquet in which a condition holds for no row, by their statistics: they need not be read."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.arrowtypes import arrow_type
from shardmill.core.where.bounds import Bounds, can_hold
from shardmill.core.where.condition import columns_of
from shardmill.core.where.parsing import parse_condition


class GroupFilter:
    """Tells which row groups of a file can have rows for which a condition holds.

    Only columns that have the same type in the file and in the plan are judged: others are converted first.
    """

    def __init__(self, where: str, planned: Mapping[str, str], parquet: pq.ParquetFile) -> None:
        self._condition, self._footer = parse_condition(where), parquet.metadata
        schema = parquet.schema_arrow
        kinds = {
            name: schema.field(name).type
            for name in columns_of(self._condition)
            if schema.names.count(name) == 1 and schema.field(name).type == arrow_type(planned[name])
        }
        paths = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
        self._columns = {
            name: (paths.index(name), kind)
            for name, kind in kinds.items()
            if _is_judged(kind) and "." not in name and paths.count(name) == 1
        }

    def can_hold(self, group: int) -> bool:
        found = {}
        for name, (column, kind) in self._columns.items():
            if (bounds := _bounds(self._footer.row_group(group).column(column), kind)) is not None:
                found[name] = bounds
        return can_hold(self._condition, found)


def _is_judged(kind: pa.DataType) -> bool:
    return kind in (pa.float32(), pa.float64(), pa.string()) or pa.types.is_signed_integer(kind)


def _bounds(column: pq.ColumnChunkMetaData, kind: pa.DataType) -> Bounds | None:
    try:
        found = column.statistics if column.is_stats_set else None
        if found is None:
            return None
        nulls = not found.has_null_count or found.null_count > 0
        if found.has_null_count and found.null_count == column.num_values:
            return Bounds(None, None, nulls=True, others=False)
        if not found.has_min_max:
            return None
        others = not pa.types.is_integer(kind)
        return Bounds(found.min, found.max, nulls=nulls, others=others)
    except (UnicodeDecodeError, pa.ArrowException):
        return None
