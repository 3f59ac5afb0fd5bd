"""Seeks in a plain gzip file with indexed_gzip: for each seek point, the index keeps the content before it."""

from __future__ import annotations

import functools
import io
import struct
from typing import IO, NamedTuple

from shardmill.core.errors import SourceError
from shardmill.sources.base import SourceFile
from shardmill.sources.compressed.damage import Stream, damaged
from shardmill.store import RangeFile, ReadRange, locate

# GZIDX, version, flags, packed size, unpacked size, spacing, window size, points; then the points.
_HEAD = struct.Struct("<5sBBQQIII")
_POINT = struct.Struct("<QQBB")

# Each point stores the 32 KiB before it.
LEAST_SPACING_BYTES = 64 << 10


class GzipIndex(NamedTuple):
    """The seek points, as offsets in file and content, and the offset of the last member in the content."""

    unpacked_bytes: int
    entries: tuple[tuple[int, int], ...]
    last_member: int


def build_index(file: SourceFile, source: RangeFile, read: ReadRange, spacing_bytes: int) -> bytes:
    """Scan a gzip file once; refuses one that is damaged or does not end with its own length."""
    import indexed_gzip

    out = io.BytesIO()
    try:
        with indexed_gzip.IndexedGzipFile(fileobj=source, spacing=spacing_bytes) as stream:
            stream.build_full_index()
            stream.export_index(fileobj=out)
    except (indexed_gzip.ZranError, OSError) as error:
        if source.error is not None:
            raise source.error from None
        raise damaged(file, str(error).partition(" (file")[0], 0) from error
    index = parse_index(out.getvalue())
    if not _ends_well(index, int.from_bytes(read(file.size_bytes - 4, file.size_bytes), "little")):
        raise damaged(file, "it does not end like a gzip file", index.unpacked_bytes)
    return out.getvalue()


def _ends_well(index: GzipIndex, length: int) -> bool:
    """Compare with the length that ends a gzip file: indexed_gzip accepts a truncated file as complete."""
    return (index.unpacked_bytes - index.last_member) % 2**32 == length


def parse_index(data: bytes) -> GzipIndex:
    """Parse the header of an index. A point without a window, marked by its last byte, begins a member."""
    try:
        magic, _, _, _, unpacked_bytes, _, _, count = _HEAD.unpack_from(data)
        points = list(_POINT.iter_unpack(data[_HEAD.size : _HEAD.size + count * _POINT.size]))
    except struct.error:
        magic = b""
    if magic != b"GZIDX":
        raise SourceError(
            "The index of a gzip file is damaged.", hint="Start over with --fresh, which builds it again."
        )
    members = [unpacked for _, unpacked, _, has_window in points if not has_window]
    entries = tuple((packed, unpacked) for packed, unpacked, *_ in points)
    return GzipIndex(unpacked_bytes, entries, max(members, default=0))


def open_indexed(source: RangeFile, index: str, at: int) -> Stream:
    """Open the content from `at`."""
    import indexed_gzip

    stream: IO[bytes] = indexed_gzip.IndexedGzipFile(fileobj=source)
    stream.import_index(fileobj=io.BytesIO(_fetch(index)))  # type: ignore[attr-defined]
    stream.seek(at)
    return stream


@functools.lru_cache(4)
def _fetch(place: str) -> bytes:
    store, key = locate(place)
    try:
        return store.get(key)
    except FileNotFoundError:
        raise SourceError(f"{place} is gone.", hint="Start over with --fresh: it is built again.") from None
