"""The bytes of its files that a shard needs, for copies that contain only those."""

from __future__ import annotations

from shardmill.ranges import Range
from shardmill.sources.base import Shard, SourceFile, SourceStat
from shardmill.sources.content import open_ranges
from shardmill.sources.csv.source import DELIMITERS, read_header
from shardmill.sources.cuts import find_line_start
from shardmill.sources.formats import is_in_lines


def is_ranged(stat: SourceStat, file: SourceFile) -> bool:
    """Whether a shard needs only some bytes of this file, and these are known."""
    return not file.compression and is_in_lines(stat.format)


def extents(stat: SourceStat, shard: Shard, number: int) -> list[Range]:
    """The byte ranges that a shard needs of the file with this number: all of it, if it is one of several.

    For lines: from the byte before the range, which shows whether a line starts there, to the end of the last line.
    For CSV: the header and the range. Bytes after these may be read ahead, but are not used.
    """
    file = stat.files[number]
    if shard.files > 1:
        return [(0, file.size_bytes)]
    if stat.format in DELIMITERS:
        header = read_header(file, DELIMITERS[stat.format])
        return [(0, header.stop if header else 0), (shard.start, shard.stop)]
    with open_ranges(file) as read:
        stop = find_line_start(read, shard.stop, file.end) or file.end
    return [(max(0, shard.start - 1), stop)]
