"""A seekable file over range reads: sequential reads are read ahead, random reads are not."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from shardmill.core.errors import ShardmillError

ReadRange = Callable[[int, int], bytes]
_FIRST_READ_BYTES = 256 << 10
_LARGEST_READ_BYTES = 4 << 20


class RangeFile(io.RawIOBase):
    """The bytes that `read` returns, as a file of `size` bytes.

    It keeps the error of a failed read, which a library may swallow. A read may return fewer bytes than requested, even
    before the end: wrap it in `io.BufferedReader` if that matters.
    """

    def __init__(self, read: ReadRange, size: int, start: int = 0) -> None:
        self._read, self._size, self._at = read, size, start
        self._ahead, self._ahead_at, self._width = b"", start, _FIRST_READ_BYTES
        self.error: ShardmillError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        inside = self._at - self._ahead_at
        if not 0 <= inside < len(self._ahead):
            self._fetch(len(buffer))
            inside = 0
        data = self._ahead[inside : inside + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self, size: int) -> None:
        if self._at != self._ahead_at + len(self._ahead):
            self._width = _FIRST_READ_BYTES
        stop = min(self._at + max(size, self._width), self._size)
        try:
            self._ahead = self._read(self._at, stop) if self._at < stop else b""
        except ShardmillError as error:
            self.error = error
            raise
        self._ahead_at, self._width = self._at, min(2 * self._width, _LARGEST_READ_BYTES)
