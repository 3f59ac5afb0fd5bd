"""How much a file holds, found by other means than reading it item by item: what verify holds a run against."""

from __future__ import annotations

from shardmill.plan import SourceFile, SourceStat
from shardmill.sources.content import open_ranges
from shardmill.sources.files import BLOCK_BYTES, check_unchanged
from shardmill.store import is_url


def count_lines(stat: SourceStat, file: SourceFile) -> int | None:
    """Lines of a text file, rows of any other; None for what would have to be fetched whole to be counted."""
    if not file.size_bytes:
        return 0
    if stat.format == "range":
        return file.size_bytes
    check_unchanged(file)
    if stat.format == "parquet":
        from shardmill.sources.parquet import count_rows

        return count_rows(file)
    if stat.format == "arrow":
        from shardmill.sources.arrow import source as arrows

        return arrows.count_rows(file)
    if is_url(file.place):
        return None
    if stat.format == "json":
        from shardmill.sources.json import array as jsonarrays

        return jsonarrays.count_rows(file)
    if stat.format == "pickle":
        from shardmill.sources.pickle import source as pickles

        return pickles.count_rows(file)
    return _count_lines(file)


def _count_lines(file: SourceFile) -> int:
    lines, at, ends = 0, 0, b"\n"
    with open_ranges(file) as read:
        while at < file.end and (block := read(at, min(at + BLOCK_BYTES, file.end))):
            lines, at, ends = lines + block.count(b"\n"), at + len(block), block[-1:]
    return lines + (ends != b"\n")
