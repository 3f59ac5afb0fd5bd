"""Counts the rows of a file without reading it item by item; verify compares a run with this count."""

from __future__ import annotations

from shardmill.plan import SourceFile, SourceStat
from shardmill.sources.files import check_unchanged
from shardmill.sources.formats import find_format, find_reader
from shardmill.store import is_url


def count_lines(stat: SourceStat, file: SourceFile) -> int | None:
    """Count the lines of a text file, the rows of any other; None if that would download the whole file."""
    format, reader = find_format(stat.format), find_reader(stat.format)
    if not file.size_bytes and format.unit != "file":
        return 0
    if not format.schemes:
        check_unchanged(file)
        if is_url(file.place) and not format.counted_remotely:
            return None
    counted: int | None = reader.count_rows(stat, file)
    return counted
