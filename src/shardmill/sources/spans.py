"""The bytes of its files that a shard needs, for copies that contain only those."""

from __future__ import annotations

from shardmill.core.ranges import Range
from shardmill.plugins import find
from shardmill.sources.base import Shard, SourceFile, SourceStat
from shardmill.sources.formats import find_reader


def is_ranged(stat: SourceStat, file: SourceFile) -> bool:
    """Whether a shard needs only some bytes of this file, and these are known."""
    return (
        not file.compression
        and find("sources", stat.format) is not None
        and hasattr(find_reader(stat.format), "extents")
    )


def extents(stat: SourceStat, shard: Shard, number: int) -> list[Range]:
    """The byte ranges that a shard needs of the file with this number: all of it, if it is one of several."""
    if shard.files > 1:
        return [(0, stat.files[number].size_bytes)]
    found: list[Range] = find_reader(stat.format).extents(stat, shard, number)
    return found
