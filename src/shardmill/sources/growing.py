"""Files of lines that only grow: what was read of them stays, and what was added is read, up to the last whole line.

Design: docs/design/telling-sources.md
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from shardmill.core.errors import SourceError
from shardmill.plan import Plan, Shard, SourceFile
from shardmill.sources.files import GROWS, WINDOW_BYTES, digest_edges, empty_source, file_name, open_packed, readable
from shardmill.store import ReadRange, is_url

_LINES = ("jsonl", "text")


def follow(kind: str, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    """The files as they are up to their last whole line, whatever is added later."""
    if kind not in _LINES:
        raise SourceError(f"--follow is for lines (jsonl or text), and these files are {kind}.", hint="Leave it out.")
    followed = tuple(map(_follow, files))
    if not any(file.size_bytes for file in followed):
        raise empty_source(followed)
    return followed


def _follow(file: SourceFile) -> SourceFile:
    if is_url(file.place) or file.compression:
        why = "not a local file" if is_url(file.place) else f"compressed with {file.compression}"
        raise SourceError(f"--follow: {file_name(file.place)} is {why}.", hint="Leave it out: files are compared.")
    with readable(file.place), open_packed(file) as read:
        end = _end_of_lines(read, file.size_bytes)
        number = os.stat(file.place).st_ino
        return replace(file, size_bytes=end, tag=GROWS, edges=digest_edges(read, end), settled=f"{number}-")


def _end_of_lines(read: ReadRange, size: int) -> int:
    """Where the last line ends that has an end."""
    stop = size
    while stop:
        start = max(0, stop - WINDOW_BYTES)
        if (at := read(start, stop).rfind(b"\n")) >= 0:
            return start + at + 1
        stop = start
    return 0


def has_grown(was: SourceFile, now: SourceFile) -> bool:
    """Whether a file that is followed begins with all that it was, in whole lines."""
    size = was.size_bytes
    same = was.place == now.place and was.settled.partition("-")[0] == now.settled.partition("-")[0] != ""
    if now.tag != GROWS or not same or not 0 < size < now.size_bytes:
        return False
    with readable(now.place), open_packed(now) as read:
        return read(size - 1, size) == b"\n" and digest_edges(read, size) == was.edges


def cut_further(before: Plan, was: int, now: SourceFile, file: int, target: int) -> list[Shard]:
    """The shards of a file that has grown, which has the number `file`: those that it had, and the lines after them.

    The last ones are cut anew, as long as they are together no more than a shard: else each refresh would add one.
    """
    kept = [shard for shard in before.shards if shard.file == was and shard.files == 1]
    start = before.stat.files[was].size_bytes
    if not kept or kept[0].start or kept[-1].stop != start:
        kept, start = [], 0
    while kept and now.size_bytes - kept[-1].start <= target:
        start = kept.pop().start
    stops = [*range(start + target, now.size_bytes, target), now.size_bytes]
    added = [Shard(0, file, a, b, b - a) for a, b in zip([start, *stops], stops, strict=False)]
    return [*(replace(shard, file=file) for shard in kept), *added]
