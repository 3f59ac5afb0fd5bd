"""The blocks of an Avro file: its header, where a block begins, and the records in one.

A block tells its rows and its bytes, and ends with sixteen bytes that the file chose, so blocks are counted and found
without being decoded.
"""

from __future__ import annotations

import bz2
import io
import itertools
import json
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from lzma import LZMAError
from typing import Any, NamedTuple

import pyarrow as pa

from shardmill.core.extras import missing_package
from shardmill.core.ranges import Range
from shardmill.sources.files import BLOCK_BYTES, WINDOW_BYTES
from shardmill.store import ReadRange

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
CODECS = ("null", "deflate", "snappy", "zstandard", "bzip2", "xz")
_MOST_HEADER_BYTES = 64 << 20
_LONGEST_NUMBER = 10
# Those before a block are its rows and its bytes.
_NUMBERS_BYTES = 2 * _LONGEST_NUMBER
# Damaged data makes a decoder raise almost anything.
_DAMAGE = (ArithmeticError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError, zlib.error, LZMAError)
_HEADER = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": len(MAGIC)}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": SYNC_BYTES}},
    ],
}


class BadBlocks(Exception):
    """A file that is not Avro, or is damaged; the message is the reason."""


@dataclass(frozen=True, slots=True)
class AvroHeader:
    """What a file begins with; its first block follows at byte `size`."""

    schema: Any
    codec: str
    sync: bytes
    size: int


class AvroBlock(NamedTuple):
    """The rows of a block, and the bytes of its data, which the sync marker follows."""

    at: int
    rows: int
    start: int
    stop: int

    @property
    def end(self) -> int:
        return self.stop + SYNC_BYTES


class AvroBlocks:
    """The blocks of a file of `size` bytes, whose ranges `read` reads."""

    def __init__(self, read: ReadRange, size: int) -> None:
        self._read, self._size = read, size
        self.header = self._read_header()

    def _read_header(self) -> AvroHeader:
        width = WINDOW_BYTES
        while True:
            data = io.BytesIO(self._read(0, min(width, self._size)))
            if not data.getvalue().startswith(MAGIC):
                raise BadBlocks("it does not begin as Avro files do")
            try:
                found = library().schemaless_reader(data, _HEADER, None)
                break
            except _DAMAGE as error:
                if width >= min(self._size, _MOST_HEADER_BYTES):
                    raise BadBlocks("its header is truncated or damaged") from error
                width *= 4
        codec = found["meta"].get("avro.codec", b"null").decode(errors="replace")
        if codec not in CODECS:
            raise BadBlocks(f"it is packed with {codec!r}, which is none of {', '.join(CODECS)}")
        try:
            schema = json.loads(found["meta"]["avro.schema"])
        except (KeyError, ValueError, RecursionError) as error:
            raise BadBlocks("its header has no readable schema") from error
        return AvroHeader(schema, codec, found["sync"], data.tell())

    def check_end(self) -> None:
        """Refuse a file that does not end where a block does."""
        if self._size > self.header.size and self._read(self._size - SYNC_BYTES, self._size) != self.header.sync:
            raise BadBlocks("it is truncated, or damaged at its end")

    def walk(self, start: int, stop: int) -> Iterator[AvroBlock]:
        """The blocks in [start, stop), which must begin and end with one."""
        while start < stop:
            block = self._find_at(start)
            if block is None or block.end > stop:
                raise BadBlocks(f"the block at byte {start:,} is damaged")
            yield block
            start = block.end

    def cut(self, target_bytes: int) -> list[Range]:
        """Ranges of whole blocks, each about as large as the target."""
        start, size = self.header.size, self._size - self.header.size
        if not size:
            return []
        step, bounds = -(-size // -(-size // max(target_bytes, 1))), [start]
        while (found := self._find_after(bounds[-1] + step)) is not None:
            bounds.append(found)
        return list(itertools.pairwise([*bounds, self._size]))

    def records(self, block: AvroBlock, schema: Any) -> Iterator[tuple[Any, int]]:
        """The records of a block by its parsed schema, each with its size; in text that is not UTF-8, surrogates are in
        place of the wrong bytes."""
        packed, decode = self._read(block.start, block.stop), library().schemaless_reader
        begin = 0
        try:
            data = io.BytesIO(_unpack(self.header.codec, packed))
            for _ in range(block.rows):
                record = decode(data, schema, None, handle_unicode_errors="surrogateescape")
                yield record, data.tell() - begin
                begin = data.tell()
            if data.read(1):
                raise ValueError("more follows its last record")
        except _DAMAGE as error:
            raise BadBlocks(f"the block at byte {block.at:,} is damaged ({str(error) or 'it ends early'})") from error

    def _find_at(self, at: int) -> AvroBlock | None:
        """The block that begins here; None if there is none."""
        numbers = self._read(at, min(at + _NUMBERS_BYTES, self._size))
        rows, used = _read_signed(numbers, 0)
        size, used = _read_signed(numbers, used) if used else (-1, 0)
        block = AvroBlock(at, rows, at + used, at + used + size)
        if rows < 0 or size < 0 or block.end > self._size:
            return None
        return block if self._read(block.stop, block.end) == self.header.sync else None

    def _find_after(self, start: int) -> int | None:
        """The first byte from `start` on where a block begins; None if none does."""
        at, width, sync = start - SYNC_BYTES, WINDOW_BYTES, self.header.sync
        while at + SYNC_BYTES < self._size:
            window = self._read(at, min(at + width, self._size))
            found = window.find(sync)
            while found >= 0:
                begin = at + found + SYNC_BYTES
                # Data may have the marker, too, but no block follows it there that ends with another.
                if begin < self._size and self._find_at(begin) is not None:
                    return begin
                found = window.find(sync, found + 1)
            at, width = at + max(1, len(window) - SYNC_BYTES + 1), min(2 * width, BLOCK_BYTES)
        return None


@cache
def library(extra: str = "") -> Any:
    """The library that decodes; `extra` brings it, if it is missing."""
    try:
        import fastavro
    except ImportError as error:
        raise missing_package("fastavro", extra) from error
    return fastavro


def _read_signed(data: bytes, at: int) -> tuple[int, int]:
    """A number whose lowest bit is its sign, and where it ends."""
    number, end = _read_number(data, at)
    return (number >> 1) ^ -(number & 1), end


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first; and where it ends, 0 if it does not."""
    number = 0
    for i, byte in enumerate(data[at : at + _LONGEST_NUMBER]):
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number, at + i + 1
    return 1, 0


def _unpack(codec: str, data: bytes) -> bytes:
    match codec:
        case "deflate":
            unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
            unpacked = unpacker.decompress(data)
            if not unpacker.eof:
                raise ValueError("its data ends early")
            return unpacked
        case "snappy":
            packed, checksum = data[:-4], data[-4:]
            size, _ = _read_number(packed, 0)
            unpacked = bytes(pa.decompress(packed, size, "snappy", asbytes=True))
            if zlib.crc32(unpacked).to_bytes(4, "big") != checksum:
                raise ValueError("its checksum differs")
            return unpacked
        case "zstandard":
            return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
        case "bzip2":
            return bz2.decompress(data)
        case "xz":
            return lzma.decompress(data)
    return data
