"""How much a file holds, found by other means than reading it item by item: what verify compares a run with."""

from __future__ import annotations

from shardmill.plan import SourceFile, SourceStat
from shardmill.sources.files import check_unchanged
from shardmill.sources.formats import find_format
from shardmill.store import is_url


def count_lines(stat: SourceStat, file: SourceFile) -> int | None:
    """Lines of a text file, rows of any other; None for what would have to be fetched whole to be counted."""
    if not file.size_bytes:
        return 0
    if stat.format == "range":
        return file.size_bytes
    check_unchanged(file)
    format = find_format(stat.format)
    if is_url(file.place) and not format.counted_remotely:
        return None
    return format.reader().count_rows(file)
