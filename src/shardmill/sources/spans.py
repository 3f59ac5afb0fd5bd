"""Which bytes of its file a shard needs, for copies that hold only those."""

from __future__ import annotations

from shardmill.ranges import Range
from shardmill.sources.base import Shard, SourceStat
from shardmill.sources.csvs import DELIMITERS, read_header
from shardmill.sources.cuts import find_line_start
from shardmill.sources.files import open_ranges


def extents(stat: SourceStat, shard: Shard) -> list[Range] | None:
    """Of lines: from the byte before the range, which tells whether a line starts there, to the end of the last line.

    Of CSV the header too. What is behind these is read ahead, but not looked at.
    """
    file = stat.files[shard.file]
    if file.compression:
        return None
    if stat.format in ("jsonl", "text"):
        with open_ranges(file) as read:
            stop = find_line_start(read, shard.stop, file.end) or file.end
        return [(max(0, shard.start - 1), stop)]
    if stat.format in DELIMITERS:
        header = read_header(file, DELIMITERS[stat.format])
        return [(0, header.stop if header else 0), (shard.start, shard.stop)]
    return None
