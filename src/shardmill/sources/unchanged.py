"""Files that are as they were when an earlier edition was planned, and their shards: nothing of them is read again.

What is believed, and why: docs/design/editions.md
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardmill.core.errors import SourceError
from shardmill.plan import Plan, Shard, SourceFile, SourceStat
from shardmill.sources.base import Source
from shardmill.sources.files import GROWS
from shardmill.sources.formats import find_format
from shardmill.sources.growing import cut_further, has_grown
from shardmill.store import is_exact, is_url

if TYPE_CHECKING:
    from shardmill.plan.spec import Work

# A disk's clock has ticks, of two seconds on some. A file that changed no longer ago may be written again in the same
# tick, which nothing tells.
_TICK_NS = 3 * 10**9
# Tags that are made of the content: MD5, or one of several parts.
_OF_CONTENT = re.compile(r'"?[0-9a-f]{32}(-[0-9]+)?"?')


def settled(place: str, size: int, tag: str) -> str:
    """The number of a local file and when it last changed, its name and rights included.

    Empty if that was a moment ago, or if it has another size or time than was said before.
    """
    try:
        seen = os.stat(place)
    except OSError:
        return ""
    is_same = (seen.st_size, f"mtime-{seen.st_mtime_ns}") == (size, tag)
    is_old = 0 < seen.st_ctime_ns < time.time_ns() - _TICK_NS
    return f"{seen.st_ino}-{seen.st_ctime_ns}" if is_same and is_old else ""


def is_doubtful(was: SourceFile, now: SourceFile) -> bool:
    """Whether a local file with the size, the time and the edges that it had may have been written since."""
    return now.tag.startswith("mtime-") and not (was.settled and was.settled == now.settled)


def find_unchanged(before: Plan, new: Plan) -> dict[int, int]:
    """The shards of a plan whose items are those of a shard of the plan before, with the number of that one."""
    there = {_span(shard): shard.index for shard in before.shards}
    found, were = {}, find_same_files(before, new.work, new.stat)
    grown = find_grown_files(before, new.work, new.stat)
    for shard in new.shards:
        first = were.get(shard.file, grown.get(shard.file, -1))
        if first < 0:
            continue
        is_same = all(were.get(shard.file + n) == first + n for n in range(shard.files))
        if not is_same and (shard.files > 1 or shard.stop > before.stat.files[first].size_bytes):
            continue
        # Without ids, the draw of a share goes by the number of the file.
        if new.work.take is not None and first != shard.file:
            continue
        at = there.get(_span(replace(shard, file=first)))
        if at is not None:
            found[shard.index] = at
    return found


def cut_as_before(
    open_files: Callable[[SourceStat], Source], stat: SourceStat, work: Work, before: Plan, target: int
) -> list[Shard]:
    """The shards of a source; files that are as they were before are cut as they were, and all others anew."""
    are = {was: now for now, was in find_same_files(before, work, stat).items()}
    shards: list[Shard] = []
    covered: set[int] = set()
    for number, was in find_grown_files(before, work, stat).items():
        shards += cut_further(before, was, stat.files[number], number, target)
        covered.add(number)
    for shard in before.shards:
        first = are.get(shard.file, -1)
        if first >= 0 and all(are.get(shard.file + n) == first + n for n in range(shard.files)):
            shards.append(replace(shard, file=first))
            covered.update(range(first, first + shard.files))
    try:
        for numbers in _runs([n for n in range(len(stat.files)) if n not in covered]):
            files = stat.files[numbers.start : numbers.stop]
            if any(file.size_bytes for file in files):
                found = open_files(replace(stat, files=files)).shards(target)
                shards += (replace(shard, file=numbers.start + shard.file) for shard in found)
    except SourceError:
        # It is told of the whole source, if it is true of that.
        return open_files(stat).shards(target)
    shards.sort(key=lambda shard: (shard.file, shard.start))
    return [replace(shard, index=index) for index, shard in enumerate(shards)]


def _runs(numbers: Sequence[int]) -> list[range]:
    """
    >>> _runs([2, 3, 7])
    [range(2, 4), range(7, 8)]
    """
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def _span(shard: Shard) -> tuple[int, int, int, int, int]:
    return shard.file, shard.files, shard.start, shard.stop, shard.before


def find_same_files(before: Plan, work: Work, stat: SourceStat) -> dict[int, int]:
    """The files that are as they were, by their numbers: of each, the one that it had."""
    if not _reads_alike(before, work, stat):
        return {}
    at = {file.place: number for number, file in enumerate(before.stat.files)}
    gone = at.keys() - {file.place for file in stat.files}
    moved = {_content(before.stat.files[at[place]]): at[place] for place in gone}
    # An item may be named by its file.
    may_move = not stat.origin and find_format(stat.format).unit != "file"
    found = {}
    for number, now in enumerate(stat.files):
        was = at.get(now.place, -1)
        if was < 0 and may_move:
            was = moved.pop(_content(now), -1)
        if was >= 0 and _is_same(before.stat.files[was], now):
            found[number] = was
    return found


def find_grown_files(before: Plan, work: Work, stat: SourceStat) -> dict[int, int]:
    """The files that are followed and have only grown, by their numbers: of each, the one that it had."""
    if stat.origin or not _reads_alike(before, work, stat):
        return {}
    at = {file.place: number for number, file in enumerate(before.stat.files)}
    pairs = ((number, at[file.place]) for number, file in enumerate(stat.files) if file.place in at)
    return {now: was for now, was in pairs if has_grown(before.stat.files[was], stat.files[now])}


def _reads_alike(before: Plan, work: Work, stat: SourceStat) -> bool:
    """Whether both read the same columns of a file in the same way, whatever the files."""
    if work.query or before.work.query or work.group_by or work.limit:
        return False
    other = {"source", "params", "edition", "items", "to", "changed_since", "follow"}
    was, is_ = (each.model_dump(exclude=other) for each in (before.work, work))
    old = before.stat
    if was != is_ or (old.format, old.columns, old.origin) != (stat.format, stat.columns, stat.origin):
        return False
    if find_format(stat.format).unit == "file" and (len(old.files) == 1) != (len(stat.files) == 1):
        return False
    if not stat.origin:
        return True
    from shardmill.sources.origin import common_folder

    folders = [common_folder([file.origin for file in files]) for files in (old.files, stat.files)]
    return folders[0] == folders[1]


def _is_same(was: SourceFile, now: SourceFile) -> bool:
    """Whether a file holds what one held then. Size and time alone are not believed."""
    if was.identity[1:] != now.identity[1:] or _read_as(was) != _read_as(now):
        return False
    if now.run:
        return was.edges == now.edges
    is_there = was.place == now.place
    if is_url(now.place):
        by_content = bool(now.edges) or _OF_CONTENT.fullmatch(now.tag) is not None
        return by_content or (is_there and is_exact(now.tag))
    if not (was.settled and now.settled):
        return False
    if now.tag == GROWS and is_there:
        return True
    # A new name is a change, too: then it is the same file, with the same time.
    return was.settled == now.settled or (not is_there and _number(was) == _number(now))


def _read_as(file: SourceFile) -> tuple[str, int, str, str]:
    return file.compression, file.unpacked_bytes, file.origin, file.path


def _content(file: SourceFile) -> tuple[int, str, str, str]:
    return file.size_bytes, file.tag, file.edges, _number(file)


def _number(file: SourceFile) -> str:
    return file.settled.partition("-")[0]
