"""Mail archives, one message per item. A shard owns the messages that begin inside its range of bytes."""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterator
from email.message import EmailMessage
from itertools import islice

from shardmill.core.ranges import Range, split_evenly
from shardmill.core.template import TextTemplate
from shardmill.sources.base import Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BatchBuilder
from shardmill.sources.columns import build_columns
from shardmill.sources.content import open_ranges
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.sampling import describe_rows
from shardmill.store import ReadRange

# A message begins with this line, at the start of the file or after a blank line.
_BEGIN = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From ")
_BLOCK_BYTES = 1 << 20
# What must be seen before a place to tell whether a message begins there.
_BEFORE = 3
_SAMPLE = 200


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    return describe_rows(stat.files[0], sample(stat), fields)


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return MboxSource(stat, fields, max_item_bytes)


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    with open_ranges(file) as read:
        return sum(1 for _ in find_starts(read, 0, file.end))


def sample(stat: SourceStat) -> list[Row]:
    return [row for file in stat.files for row, _ in islice(iter_rows(stat, file), _SAMPLE)]


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    with open_ranges(file) as read:
        for start, stop in find_messages(read, 0, file.end, file.end):
            yield parse(read(start, stop)), stop


def extents(stat: SourceStat, shard: Shard, number: int) -> list[Range]:
    """From just before the range to where the message after it begins, which shows the end of the last one."""
    file = stat.files[number]
    with open_ranges(file) as read:
        stop = next(find_starts(read, shard.stop, file.end), file.end)
    return [(max(0, shard.start - _BEFORE), min(file.size_bytes, stop + len(b"From ")))]


def find_starts(read: ReadRange, start: int, end: int) -> Iterator[int]:
    """The places from `start` on where a message begins."""
    at = start
    while at < end:
        before = max(0, at - _BEFORE)
        # A beginning that the block cuts is found in the next one.
        stop = min(end, at + _BLOCK_BYTES)
        block = read(before, min(end, stop + 5))
        for found in _BEGIN.finditer(block):
            place = before + found.start()
            if at <= place < stop and (place == 0 or found.start() > 0):
                yield place
        at = stop


def find_messages(read: ReadRange, start: int, stop: int, end: int) -> Iterator[Range]:
    """The messages that begin between two places, each from its beginning to that of the next."""
    begun = None
    for place in find_starts(read, start, end):
        if begun is not None:
            yield begun, place
        if place >= stop:
            return
        begun = place
    if begun is not None:
        yield begun, end


def parse(message: bytes) -> Row:
    """The fields of a message; its body is its first part of plain text."""
    # The first line and the blank line at the end belong to the archive.
    content = message.partition(b"\n")[2]
    if content.endswith((b"\n\n", b"\n\r\n")):
        content = content[:-1].removesuffix(b"\r")
    found = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(found, EmailMessage)
    body = found.get_body(("plain",))
    names = {"id": "Message-ID", "sender": "From", "to": "To", "subject": "Subject", "date": "Date"}
    row: Row = {name: str(found[header]) if found[header] is not None else None for name, header in names.items()}
    return {**row, "body": body.get_content() if body is not None else ""}


class MboxSource(FileSource):
    """Mail archives, cut by bytes."""

    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._max_item_bytes = max_item_bytes
        self._template = TextTemplate.parse(fields.text)
        self._columns = build_columns(stat, fields)

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        size = self._stat.files[file].size_bytes
        parts = split_evenly(0, size, max(1, -(-size // max(1, target_bytes))))
        return [((start, stop), stop - start) for start, stop in parts]

    def count_between(self, shard: Shard, later: Shard) -> int:
        file = self._stat.files[shard.file]
        with open_ranges(file) as read:
            return sum(1 for _ in find_messages(read, shard.start, later.start, file.end))

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file, number = self._stat.files[shard.file], 0
        builder = BatchBuilder(self._template, self._columns, self.origins.of(shard))
        with open_ranges(file) as read:
            for start, stop in find_messages(read, shard.start, shard.stop, file.end):
                size = stop - start
                if not builder.has_room_for(size):
                    yield builder.take(number)
                number += 1
                if size > self._max_item_bytes:
                    builder.add_bad(f"the message has {size:,} bytes", number, place=start)
                    continue
                try:
                    builder.add(parse(read(start, stop)), number, size, start)
                except (LookupError, ValueError, UnicodeError) as error:
                    builder.add_bad(f"the message cannot be read: {error}", number, size, start)
        yield builder.take(number)
