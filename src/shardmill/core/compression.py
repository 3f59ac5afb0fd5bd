"""Compresses blocks of bytes, each into a frame or member of its own, which may follow one another in a file."""

from __future__ import annotations

import zlib
from collections.abc import Callable

Buffer = bytes | memoryview

SUFFIXES = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_GZIP_LEVEL, _ZSTD_LEVEL = 1, 1


def squeezer(compress: str) -> Callable[[Buffer], Buffer]:
    """A function that compresses one block: with "gzip", "zstd", or not at all."""
    if compress == "zstd":
        import pyarrow as pa

        return lambda data: bytes(pa.Codec("zstd", compression_level=_ZSTD_LEVEL).compress(data, asbytes=True))
    if compress == "gzip":
        return lambda data: zlib.compress(data, _GZIP_LEVEL, wbits=31)
    return lambda data: data
