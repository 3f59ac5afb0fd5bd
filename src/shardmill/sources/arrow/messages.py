"""Finds the messages of an Arrow IPC file or stream from their headers, without reading their bodies."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from shardmill.core.errors import SourceError
from shardmill.sources.base import SourceFile
from shardmill.sources.content import open_ranges
from shardmill.sources.files import file_name
from shardmill.store import ReadRange

MAGIC = b"ARROW1"
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_CONTINUES = END[:4]
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_WINDOW_BYTES = 8 << 10
_MOST_METADATA_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Message:
    """One encapsulated message, [start, stop) in the file; a dictionary has no rows."""

    start: int
    stop: int
    rows: int
    is_batch: bool


@dataclass(frozen=True, slots=True)
class MessageIndex:
    """The schema, then the dictionaries and batches in the order to read them."""

    schema: Message
    messages: tuple[Message, ...]

    @property
    def batches(self) -> list[Message]:
        return [m for m in self.messages if m.is_batch and m.rows]

    @property
    def rows(self) -> int:
        return sum(m.rows for m in self.messages)


class _Broken(Exception):
    """The bytes are not valid Arrow; the message is the reason."""


@lru_cache(256)
def index_file(file: SourceFile) -> MessageIndex:
    """Index the messages: of a file by its footer, of a stream by walking from header to header."""
    with open_ranges(file) as read:
        try:
            if file.size_bytes >= 8 and read(0, 6) == MAGIC:
                return _index_file(read, file.size_bytes)
            return _index_stream(read, file.size_bytes)
        except (_Broken, struct.error, IndexError) as error:
            reason = str(error) if isinstance(error, _Broken) else "a header is invalid"
            raise SourceError(
                f"{file_name(file.place)} is not readable Arrow: {reason}.",
                hint=f"Fetch or write {file.place} again, and close the writer.",
            ) from None


def _index_stream(read: ReadRange, size: int) -> MessageIndex:
    found = list(_walk(read, 0, size))
    if not found or found[0][0] != _SCHEMA:
        raise _Broken("it does not start with a schema")
    return MessageIndex(found[0][1], tuple(message for kind, message in found[1:] if kind in (_DICTIONARY, _BATCH)))


def _walk(read: ReadRange, at: int, size: int) -> Iterator[tuple[int, Message]]:
    while True:
        if at + 8 > size:
            raise _Broken(f"it is truncated at byte {size:,}, where its end marker should be")
        window = read(at, min(at + _WINDOW_BYTES, size))
        if window.startswith(END):
            if at + 8 < size:
                raise _Broken(f"its end marker is at byte {at:,}, but {size - at - 8:,} bytes follow")
            return
        kind, message = _parse_message(read, at, size, window)
        yield kind, message
        at = message.stop


def _parse_message(read: ReadRange, at: int, size: int, window: bytes) -> tuple[int, Message]:
    if window[:4] != _CONTINUES:
        raise _Broken("it is neither an Arrow file nor an Arrow stream" if at == 0 else f"no message at byte {at:,}")
    (length,) = struct.unpack_from("<i", window, 4)
    if not 0 < length <= _MOST_METADATA_BYTES:
        raise _Broken(f"the message at byte {at:,} has a header of {length:,} bytes")
    body = at + 8 + length
    if body > size:
        raise _Broken(f"it is truncated at byte {size:,}, inside a header")
    metadata = window[8 : 8 + length] if 8 + length <= len(window) else read(at + 8, body)
    message = _Table.root(metadata)
    kind, body_bytes = message.number("<B", 1), message.number("<q", 3)
    rows = message.table(2).number("<q", 0) if kind == _BATCH else 0
    if body_bytes < 0 or rows < 0:
        raise _Broken(f"the message at byte {at:,} has a negative length")
    if body + body_bytes > size:
        raise _Broken(f"it is truncated at byte {size:,}, inside a batch that ends at {body + body_bytes:,}")
    return kind, Message(at, body + body_bytes, rows, kind == _BATCH)


def _index_file(read: ReadRange, size: int) -> MessageIndex:
    if size < 18 or read(size - 6, size) != MAGIC:
        raise _Broken(f"it is truncated at byte {size:,}, before the end of its footer")
    (length,) = struct.unpack("<i", read(size - 10, size - 6))
    if not 0 < length <= size - 18:
        raise _Broken(f"its footer claims {length:,} bytes")
    footer = _Table.root(read(size - 10 - length, size - 10))
    stop = size - 10 - length
    _, schema = _parse_message(read, 8, stop, read(8, min(8 + _WINDOW_BYTES, stop)))
    starts = [*footer.blocks(2), *footer.blocks(3)]
    # In a file a dictionary may come after the batches that use it, so all dictionaries are read first.
    return MessageIndex(schema, tuple(_at_block(read, start, stop) for start in starts))


def _at_block(read: ReadRange, start: int, stop: int) -> Message:
    if not 8 <= start <= stop - 8:
        raise _Broken(f"its footer names a batch at byte {start:,}")
    return _parse_message(read, start, stop, read(start, min(start + _WINDOW_BYTES, stop)))[1]


class _Table:
    """A flatbuffers table, with only the few kinds of fields needed here, by number."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, struct.unpack_from("<I", data)[0])

    def _place(self, field: int) -> int:
        """The offset of a field, 0 if it has its default."""
        (size,) = struct.unpack_from("<H", self._data, self._fields)
        if 4 + 2 * field >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, self._fields + 4 + 2 * field)
        return self._at + offset if offset else 0

    def number(self, kind: str, field: int) -> int:
        place = self._place(field)
        return int(struct.unpack_from(kind, self._data, place)[0]) if place else 0

    def table(self, field: int) -> _Table:
        place = self._place(field)
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])

    def blocks(self, field: int) -> list[int]:
        """The start of each block in a vector of the footer: (start, header length, body length), 24 bytes each."""
        place = self._place(field)
        if not place:
            return []
        place += struct.unpack_from("<I", self._data, place)[0]
        (count,) = struct.unpack_from("<I", self._data, place)
        data = self._data[place + 4 : place + 4 + 24 * count]
        if len(data) != 24 * count:
            raise IndexError(count)
        return [start for start, _, _ in struct.iter_unpack("<qi4xq", data)]
