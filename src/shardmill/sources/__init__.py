"""Reads items from files of every format, databases and ranges of ids.

`discover` describes a source, and `open_source` returns its reader: a `Source`, whose contract is in `base`. All
sources are declarations, which `formats` finds by name, suffix and scheme. Workers, the planner, engines, `split`,
`costs` and `results` import this package. It imports neither tasks nor sinks.

Design: docs/design/planning-and-sources.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardmill.core.errors import SourceError
from shardmill.sources.base import (
    ALL,
    MAX_ITEM_BYTES,
    Fields,
    ItemBatch,
    PlaceReader,
    Shard,
    Source,
    SourceFile,
    SourceStat,
)
from shardmill.sources.splits import ALL_CONFIGS, ALL_SPLITS

if TYPE_CHECKING:
    import pyarrow as pa

    from shardmill.plan import Plan

__all__ = [
    "ALL",
    "ALL_CONFIGS",
    "ALL_SPLITS",
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
    "list_columns",
    "name_by_place",
    "open_source",
    "sort_groups",
]


def discover(
    places: Sequence[str],
    fields: Fields,
    format: str | None = None,
    on_progress: Callable[[float, str], None] = lambda share, what: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> SourceStat:
    """Find the files (paths, folders, globs, URLs), the database or the ids, and check that the fields exist.

    Large compressed files are scanned once for seek points; progress goes to `on_progress`. What a user should know of
    files that are not read goes to `on_note`.
    """
    if fields.picture:
        from shardmill.sources.items_of_bytes import check_column

        stat = discover(places, replace(fields, picture=""), format, on_progress, on_note)
        check_column(stat, fields)
        return stat
    if fields.group_by == ALL:
        from shardmill.sources import collected

        return collected.describe_collection(
            discover(places, collected.fields_below(fields), format, on_progress, on_note)
        )
    if fields.group_by:
        from shardmill.sources.grouped import describe_groups, fields_below

        return describe_groups(discover(places, fields_below(fields), format, on_progress, on_note), fields)
    if (reader := _reader_of(places, fields.query, format)) is not None:
        for option, name, every in (("split", fields.split, ALL_SPLITS), ("config", fields.config, ALL_CONFIGS)):
            if name not in ("", every):
                raise SourceError(f"--{option} {name} has no meaning for what is not a folder.", hint="Omit it.")
        return reader.discover(places, fields)
    from shardmill.sources.discovery import discover_files

    return discover_files(places, fields, format, on_progress, on_note)


def _reader_of(places: Sequence[str], query: str, format: str | None) -> PlaceReader | None:
    """The reader of places that are not files; None if they are, or name files."""
    from shardmill.sources.formats import choose_source, find_reader

    kind = choose_source(places, query)
    if kind is None or kind.finder:
        return None
    if format is not None:
        what = "a query" if query else f"{kind.name!r}"
        raise SourceError(f"--format {format} has no meaning for {what}.", hint="Omit it.")
    reader: PlaceReader = find_reader(kind.name)
    return reader


def list_columns(
    places: Sequence[str], query: str = "", format: str | None = None, config: str = ""
) -> dict[str, pa.DataType]:
    """The names and types of all columns of a source; of one without a schema, those that sampled rows have."""
    if (reader := _reader_of(places, query, format)) is not None:
        return reader.list_columns(places, query)
    from shardmill.sources.discovery import find_files
    from shardmill.sources.listing import list_fields

    kind, files = find_files(places, format, config=config or ALL_CONFIGS)
    return list_fields(SourceStat(kind, files, {}))


def name_by_place(
    places: Sequence[str], query: str = "", format: str | None = None, config: str = ""
) -> tuple[str, ...]:
    """The columns that number items by their place in the source."""
    from shardmill.sources.discovery import find_files
    from shardmill.sources.formats import find_format
    from shardmill.sources.origin import AUTO, FILE, LINE

    if _reader_of(places, query, format) is None:
        kind = find_format(find_files(places, format, config=config or ALL_CONFIGS)[0])
        if kind.located or kind.unit == "file":
            return (FILE, LINE) if kind.located else (FILE,)
    raise SourceError(f"--id {AUTO}: items of this source have no file and line.", hint="Name a field: --id FIELD")


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int = MAX_ITEM_BYTES) -> Source:
    """Open a source that `discover` found; a grouped one must have been sorted.

    Of a part of it, each batch says which of its items are taken.
    """
    if fields.group_by == ALL:
        from shardmill.sources.collected import CollectedSource

        return CollectedSource(stat)
    if fields.group_by:
        from shardmill.sources.grouped import GroupedSource

        return GroupedSource(stat, fields)
    from shardmill.sources.formats import find_reader
    from shardmill.sources.taking import PartSource

    opened: Source = find_reader(stat.format).open_source(stat, fields, max_item_bytes)
    part = PartSource(opened, stat, fields)
    if not fields.picture:
        return part
    from shardmill.sources.items_of_bytes import BytesSource

    return BytesSource(part, fields, max_item_bytes)


def sort_groups(
    stat: SourceStat,
    fields: Fields,
    max_item_bytes: int = MAX_ITEM_BYTES,
    on_progress: Callable[[float, str], None] = lambda share, what: None,
) -> SourceStat:
    """Read a grouped source that `discover` found, and sort its rows into groups, in bounded memory.

    Grouped by `ALL`, its rows are one group and stay in their order.
    """
    if fields.group_by == ALL:
        from shardmill.sources import collected

        return collected.collect(stat, fields, max_item_bytes, open_source, on_progress)
    from shardmill.sources import grouped

    return grouped.sort_groups(stat, fields, max_item_bytes, open_source, on_progress)


def kept_schema(plan: Plan) -> pa.Schema:
    """The id and kept columns of every row of this plan."""
    import pyarrow as pa

    from shardmill.core.arrowtypes import arrow_type

    return pa.schema([pa.field(name, arrow_type(kind)) for name, kind in plan.kept.items()])


def count_lines(stat: SourceStat, file: SourceFile) -> int | None:
    """Count the lines or rows of one file again; None if that would download the whole file."""
    from shardmill.sources.counting import count_lines

    return count_lines(stat, file)


def count_rows(stat: SourceStat, fields: Fields, shards: Sequence[Shard]) -> int:
    """Count the rows that the query returns now, in the range of these shards."""
    from shardmill.sources.sql import count_query

    return count_query(stat, fields, shards)
