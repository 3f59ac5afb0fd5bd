"""Reads ranges of the content of a compressed file: from the nearest seek point, in constant memory."""

from __future__ import annotations

import bisect
import lzma

from shardmill.sources.base import SourceFile
from shardmill.sources.compressed.damage import Stream, damaged, explained
from shardmill.sources.compressed.gzip import open_indexed
from shardmill.sources.files import BLOCK_BYTES
from shardmill.store import RangeFile, ReadRange

_XZ_READ_BYTES = 64 << 10


class Unpacked:
    """Reads [start, stop) of the content. Reading forward is cheap, and so is going back within the last read."""

    def __init__(self, file: SourceFile, packed: ReadRange) -> None:
        self._file, self._packed = file, packed
        self._stream: Stream | None = None
        self._source = RangeFile(packed, 0)
        self._held, self._at = b"", 0

    def read(self, start: int, stop: int) -> bytes:
        with explained(self._file, self._source, lambda: self._at):
            data = self._read(start, stop)
        if len(data) < stop - start and not self._file.streamed:
            raise damaged(self._file, "it ends too early", self._at)
        return data

    def _read(self, start: int, stop: int) -> bytes:
        before = self._at - len(self._held)
        entry = self._entry(start)
        if self._stream is None or start < before or entry[1] > self._at:
            self._enter(*entry)
            before = self._at
        if stop <= self._at:
            return self._held[start - before : stop - before]
        held = self._held[start - before :] if start < self._at else b""
        while self._at < start:
            if not self._grow(min(BLOCK_BYTES, start - self._at)):
                return b""
        self._held = held + self._grow(stop - self._at)
        return self._held

    def _grow(self, size: int) -> bytes:
        assert self._stream is not None
        data = self._stream.read(size)
        self._at += len(data)
        self._held = b""
        return data

    def _entry(self, start: int) -> tuple[int, int]:
        entries = self._file.entries or ((0, 0),)
        return entries[bisect.bisect_right(entries, start, key=lambda entry: entry[1]) - 1]

    def _enter(self, packed_at: int, unpacked_at: int) -> None:
        self._held, self._at = b"", unpacked_at
        self._source = RangeFile(self._packed, self._file.size_bytes, packed_at)
        self._stream = open_stream(self._file, self._source, unpacked_at)


def open_stream(file: SourceFile, source: RangeFile, at: int = 0) -> Stream:
    """Open the content of a compressed file from a seek point, across members or frames."""
    if file.index and file.entries:
        return open_indexed(source, file.index, at)
    if file.compression == "xz":
        return _XzStream(source)
    import pyarrow as pa

    name = {"gzip": "gzip", "zstd": "zstd", "bzip2": "bz2"}[file.compression]
    stream: Stream = pa.CompressedInputStream(pa.PythonFile(source, "r"), name)
    return stream


class _XzStream:
    """Reads xz. Python's LZMAFile would ignore a broken second stream as trailing garbage."""

    def __init__(self, source: RangeFile) -> None:
        self._source, self._unpacker = source, lzma.LZMADecompressor(lzma.FORMAT_XZ)

    def read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0 and (piece := self._piece(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _piece(self, size: int) -> bytes:
        piece = b""
        while not piece:
            packed = b""
            if self._unpacker.eof:
                if not (packed := self._next_stream(self._unpacker.unused_data)):
                    break
                self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            elif self._unpacker.needs_input and not (packed := self._source.read(_XZ_READ_BYTES) or b""):
                raise EOFError("Truncated compressed stream")
            piece = self._unpacker.decompress(packed, size)
        return piece

    def _next_stream(self, rest: bytes) -> bytes:
        rest = rest.lstrip(b"\0")
        while not rest and (more := self._source.read(_XZ_READ_BYTES)):
            rest = more.lstrip(b"\0")
        return rest
