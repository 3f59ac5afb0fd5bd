"""Where items are read from. `open_source` picks the reader; every reader keeps one contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shardmill.errors import SourceError
from shardmill.sources.base import Fields, ItemBatch, Shard, Source, SourceFile, SourceStat

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Fields",
    "ItemBatch",
    "Shard",
    "Source",
    "SourceFile",
    "SourceStat",
    "count_lines",
    "count_rows",
    "discover",
    "kept_schema",
    "open_source",
]

MAX_ITEM_BYTES = 32 << 20


def discover(
    places: Sequence[str],
    fields: Fields,
    format: str | None = None,
    on_progress: Callable[[float, str], None] = lambda share, what: None,
) -> SourceStat:
    """Find the files at the places (files, folders, globs, URLs), the database or the ids; check for the fields.

    Large compressed files are read through once for places to enter them; `on_progress` hears of that.
    """
    from shardmill.sources import discovery, sql
    from shardmill.sources import range as numbers

    if fields.query:
        return sql.discover(places, fields, format)
    if any(map(numbers.is_range, places)):
        return numbers.discover(places, fields)
    sql.refuse_without_query(places)
    return discovery.discover(places, fields, format, on_progress)


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int = MAX_ITEM_BYTES) -> Source:
    """The reader for what `discover` found."""
    if fields.query:
        from shardmill.sources.sql import open_query

        return open_query(stat, fields, max_item_bytes)
    if stat.format == "range":
        from shardmill.sources.range import RangeSource

        return RangeSource(stat)
    if stat.format in ("jsonl", "text"):
        from shardmill.sources.lines import LineSource

        return LineSource(stat, fields, max_item_bytes)
    if stat.format in ("csv", "tsv"):
        from shardmill.sources.csv.source import CsvSource

        return CsvSource(stat, fields, max_item_bytes)
    if stat.format == "parquet":
        from shardmill.sources.parquet import ParquetSource

        return ParquetSource(stat, fields, max_item_bytes)
    if stat.format == "arrow":
        from shardmill.sources.arrow.source import ArrowSource

        return ArrowSource(stat, fields, max_item_bytes)
    if stat.format == "json":
        from shardmill.sources.json.array import JsonArraySource

        return JsonArraySource(stat, fields, max_item_bytes)
    if stat.format == "pickle":
        from shardmill.sources.pickle.source import PickleSource

        return PickleSource(stat, fields, max_item_bytes)
    raise SourceError(f"{stat.format!r} is not a format that is read.", hint="Plan the run again with --fresh.")


def kept_schema(stat: SourceStat) -> pa.Schema:
    """The id and kept columns every batch of this source has."""
    import pyarrow as pa

    from shardmill.sources.columns import arrow_type

    return pa.schema([pa.field(name, arrow_type(kind)) for name, kind in stat.columns.items()])


def count_lines(stat: SourceStat, file: SourceFile) -> int | None:
    """Lines, or rows, of one file, counted afresh; None where that would mean fetching all of it."""
    from shardmill.sources.counting import count_lines

    return count_lines(stat, file)


def count_rows(stat: SourceStat, fields: Fields, shards: Sequence[Shard]) -> int:
    """Rows that a query gives now, in the range of these shards."""
    from shardmill.sources.sql import count_rows

    return count_rows(stat, fields, shards)
