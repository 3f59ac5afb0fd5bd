"""Detects the compression of a file by its first bytes, and estimates the size of its content."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from shardmill.core.errors import SourceError
from shardmill.sources.base import SourceFile
from shardmill.sources.compressed.damage import explained
from shardmill.sources.compressed.unpacking import open_stream
from shardmill.sources.files import file_name, open_packed
from shardmill.sources.signatures import HEAD_BYTES
from shardmill.store import RangeFile, ReadRange

COMPRESSED_SUFFIXES = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bgz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bzip2",
    ".xz": "xz",
}
MAGIC = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0"}

_ESTIMATE_BYTES = 1 << 20
_THREADS, _MOST_AT_A_TIME = 16, 64
_SKIPPABLE, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0


def find_compression(
    files: Sequence[SourceFile], named: Callable[[SourceFile], str]
) -> tuple[tuple[SourceFile, ...], tuple[bytes, ...]]:
    """The files with their compression, detected by their first bytes, and the first bytes of their content.

    `named` returns the compression suffix of a file, or "".
    """
    # Of very many files, each thread takes several at a time.
    step = max(1, min(_MOST_AT_A_TIME, len(files) // (4 * _THREADS)))
    portions = [files[at : at + step] for at in range(0, len(files), step)]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = [*itertools.chain(*pool.map(lambda some: [_find_one(file, named(file)) for file in some], portions))]
    return tuple(file for file, _ in found), tuple(head for _, head in found)


def _find_one(file: SourceFile, suffix: str) -> tuple[SourceFile, bytes]:
    if not file.size_bytes:
        return file, b""
    with open_packed(file) as read:
        start = read(0, min(HEAD_BYTES, file.size_bytes))
        kind = compression_of(start, suffix)
        if not kind and suffix:
            raise SourceError(
                f"{file_name(file.place)} is not compressed as its name says: it begins with {start[:8]!r}.",
                hint=f"Remove {suffix} from its name if it is not compressed, or fetch it again.",
            )
        if not kind:
            return file, start
        size, head = _estimate(file, kind, read)
        return replace(file, compression=kind, unpacked_bytes=size), head


def compression_of(start: bytes, suffix: str) -> str:
    """The compression of a file with these first bytes; "" if it is not compressed.

    >>> compression_of(bytes.fromhex("1f8b0800"), ""), compression_of(b"BZh is a word here", "")
    ('gzip', '')
    """
    said = COMPRESSED_SUFFIXES.get(suffix, "")
    if said == "zstd" and is_skippable(start):
        return "zstd"
    for kind, magic in MAGIC.items():
        if start.startswith(magic) and (kind != "bzip2" or start[4:10] in (b"1AY&SY", b"\x17rE8P\x90")):
            return kind
    return ""


def is_skippable(start: bytes) -> bool:
    """Whether these bytes start a zstd frame without content."""
    return int.from_bytes(start[:4], "little") & _SKIPPABLE_MASK == _SKIPPABLE


def _estimate(file: SourceFile, kind: str, read: ReadRange) -> tuple[int, bytes]:
    """The size of the content, extrapolated from its head and exact for a small file, and its first bytes."""
    source = RangeFile(read, file.size_bytes)
    packed = replace(file, compression=kind)
    with explained(packed, source, lambda: 0):
        content = open_stream(packed, source).read(_ESTIMATE_BYTES)
    return len(content) * file.size_bytes // max(source.tell(), 1), content[:HEAD_BYTES]
