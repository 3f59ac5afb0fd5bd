"""Reads ranges of the content of one source file, decompressed if necessary."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import IO

from shardmill.sources.base import SourceFile
from shardmill.sources.compressed.unpacking import Unpacked
from shardmill.sources.files import changed, open_packed, readable
from shardmill.store import RangeFile, ReadRange, is_url

_BUFFER_BYTES = 1 << 20

Fill = Callable[[int, memoryview], int]


@contextlib.contextmanager
def open_ranges(file: SourceFile) -> Iterator[ReadRange]:
    """Yield a function that reads [start, stop) of the file's content; for a stream, only up to its end."""
    with open_packed(file) as packed:
        if not file.compression:
            yield packed
            return
        yield Unpacked(file, packed).read


@contextlib.contextmanager
def open_content(file: SourceFile) -> Iterator[IO[bytes]]:
    """The content as a file to seek in; in a stream, forward alone."""
    with open_ranges(file) as read:
        yield io.BufferedReader(RangeFile(read, file.end), buffer_size=_BUFFER_BYTES)


@contextlib.contextmanager
def open_filling(file: SourceFile) -> Iterator[Fill]:
    """Yield a function that fills a buffer with the content from an offset and returns the number of bytes."""
    if file.compression or is_url(file.place):
        with open_ranges(file) as read:

            def copy(start: int, buffer: memoryview) -> int:
                data = read(start, min(start + len(buffer), file.end))
                buffer[: len(data)] = data
                return len(data)

            yield copy
        return
    with readable(file.place), open(file.place, "rb", buffering=0) as handle:

        def fill(start: int, buffer: memoryview) -> int:
            at, stop = start, min(start + len(buffer), file.end)
            while at < stop and (got := os.preadv(handle.fileno(), [buffer[at - start : stop - start]], at)):
                at += got
            if at < stop:
                raise changed(file, f"it ends at byte {at}")
            return at - start

        yield fill
