"""Files that are compressed while they are written, block by block."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, BinaryIO

import pyarrow as pa

from shardmill.core.compression import squeezer
from shardmill.results.files.chosen import OpenRows, Write

_BLOCK_BYTES = 1 << 20


def packing(open_rows: OpenRows, compress: str) -> OpenRows:
    """The same format in a file that is compressed as a whole, with "gzip" or "zstd"."""
    if compress == "none":
        return open_rows

    @contextmanager
    def opened(file: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
        packed = _PackedFile(file, compress)
        with open_rows(packed, schema) as write:
            yield write
        packed.complete()

    return opened


class _PackedFile(io.RawIOBase, BinaryIO):
    def __init__(self, file: IO[bytes], compress: str) -> None:
        self._file, self._squeeze = file, squeezer(compress)
        self._waiting, self._at, self._written = bytearray(), 0, False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._waiting += view
        self._at += len(view)
        if len(self._waiting) >= _BLOCK_BYTES:
            self._send()
        return len(view)

    def complete(self) -> None:
        """Write what waits; a file without content has an empty block, as a compressed one must."""
        if self._waiting or not self._written:
            self._send()

    def _send(self) -> None:
        self._file.write(self._squeeze(bytes(self._waiting)))
        self._waiting, self._written = bytearray(), True
