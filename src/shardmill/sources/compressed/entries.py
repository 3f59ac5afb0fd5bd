"""Finds seek points, where decompression may begin: BGZF members, zstd frames, an index for gzip."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from shardmill.core.devices import cores
from shardmill.core.errors import SourceError
from shardmill.sources.base import SourceFile
from shardmill.sources.compressed.damage import damaged
from shardmill.sources.compressed.detection import MAGIC, is_skippable
from shardmill.sources.compressed.unpacking import Unpacked
from shardmill.sources.files import BLOCK_BYTES, open_packed
from shardmill.store import RangeFile, ReadRange, is_url, open_store

# A file is scanned for seek points only if it is a large part of the source; small files are one shard each.
ENTRIES_FROM_BYTES = 1 << 20
_PART_OF_SOURCE = 256
SPACING_BYTES = 4 << 20
_MOST_ENTRIES = 64

_TELL_EVERY_BYTES = 16 << 20

OnProgress = Callable[[float, str], None]
SeekPoint = tuple[int, int]


def find_entries(files: Sequence[SourceFile], on_progress: OnProgress) -> tuple[SourceFile, ...]:
    """The files with their seek points, if they are large enough to be worth the scan."""
    least = max(ENTRIES_FROM_BYTES, sum(f.size_bytes for f in files) // _PART_OF_SOURCE)
    wanted = [f for f in files if f.compression in ("gzip", "zstd") and f.size_bytes >= least]
    progress = _ScanProgress(sum(f.size_bytes for f in wanted), on_progress)

    def enter(file: SourceFile) -> SourceFile:
        with open_packed(file) as read:
            return _enter_one(file, progress.of(file, read))

    with ThreadPoolExecutor(cores()) as pool:
        entered = {file.place: file for file in pool.map(enter, wanted)}
    return tuple(entered.get(file.place, file) for file in files)


class _ScanProgress:
    """Reports from time to time how much of all files was read."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self._total, self._on_progress = total, on_progress
        self._lock, self._at = threading.Lock(), dict[str, int]()

    def of(self, file: SourceFile, read: ReadRange) -> ReadRange:
        def reported_read(start: int, stop: int) -> bytes:
            if start - self._at.get(file.place, 0) >= _TELL_EVERY_BYTES:
                with self._lock:
                    self._at[file.place] = start
                    self._on_progress(sum(self._at.values()) / self._total, file.name)
            return read(start, stop)

        return reported_read


def _enter_one(file: SourceFile, read: ReadRange) -> SourceFile:
    if file.compression == "zstd":
        return _with_entries(file, _zstd_frames(file, read))
    if is_bgzf(read(0, min(18, file.size_bytes))):
        with contextlib.suppress(_NotAllBgzf):
            return _with_entries(file, _bgzf_blocks(file, read))
    return _with_index(file, read)


def _with_entries(file: SourceFile, pieces: Iterable[SeekPoint], index: str = "") -> SourceFile:
    """The file with seek points at the starts of its pieces, given by their compressed and decompressed sizes.

    Seek points too close to the previous one are left out; a file with fewer than two stays a stream.
    """
    entries: list[SeekPoint] = []
    packed_at = unpacked_at = 0
    for packed, unpacked in pieces:
        if unpacked and (not entries or unpacked_at - entries[-1][1] >= _spacing(file)):
            entries.append((packed_at, unpacked_at))
        packed_at, unpacked_at = packed_at + packed, unpacked_at + unpacked
    if len(entries) < 2:
        return file
    return replace(file, unpacked_bytes=unpacked_at, entries=tuple(entries), index=index)


def _spacing(file: SourceFile) -> int:
    return max(SPACING_BYTES, file.size_bytes // _MOST_ENTRIES)


class _NotAllBgzf(Exception):
    """The file starts as BGZF, but continues as plain gzip or is truncated."""


def is_bgzf(head: bytes) -> bool:
    """Whether these bytes start a gzip member that stores its own size, as bgzip writes them."""
    return len(head) == 18 and head[:4] == b"\x1f\x8b\x08\x04" and head[10:16] == b"\x06\0BC\x02\0"


def _bgzf_blocks(file: SourceFile, read: ReadRange) -> Iterator[SeekPoint]:
    small, at = _small_reads(file, read), 0
    head = small(0, 18)
    while at < file.size_bytes:
        stop = at + int.from_bytes(head[16:18], "little") + 1
        if not is_bgzf(head) or stop > file.size_bytes:
            raise _NotAllBgzf
        tail = small(stop - 4, min(stop + 18, file.size_bytes))
        yield stop - at, int.from_bytes(tail[:4], "little")
        at, head = stop, tail[4:]


def _zstd_frames(file: SourceFile, read: ReadRange) -> Iterator[SeekPoint]:
    small, at = _small_reads(file, read), 0
    while at < file.size_bytes:
        head = small(at, min(at + 18, file.size_bytes))
        unpacked: int | None = 0
        if is_skippable(head):
            stop = at + 8 + int.from_bytes(head[4:8], "little")
        elif head[:4] == MAGIC["zstd"] and len(head) > 5:
            begins, unpacked, checked = parse_zstd_head(head)
            stop = _last_block(small, at + begins, file.size_bytes) + (4 if checked else 0)
        else:
            raise damaged(file, f"no zstd frame begins at byte {at:,}", 0)
        if stop > file.size_bytes:
            raise damaged(file, "its last frame is truncated", 0)
        if unpacked is None:
            unpacked = _measure(file, read, at, stop)
        yield stop - at, unpacked
        at = stop


def parse_zstd_head(head: bytes) -> tuple[int, int | None, bool]:
    """Parse the header of a frame (RFC 8878): its length, the content size if stored, whether a checksum follows.

    >>> parse_zstd_head(bytes.fromhex("28b52ffd2005"))
    (6, 5, False)
    """
    flags = head[4]
    single = bool(flags & 0x20)
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    width = (1 if single else 0, 2, 4, 8)[flags >> 6]
    size = int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)
    return at + width, size if width else None, bool(flags & 4)


def _last_block(read: ReadRange, at: int, size: int) -> int:
    """The end of the blocks that begin at an offset."""
    while at + 3 <= size:
        head = int.from_bytes(read(at, at + 3), "little")
        at += 3 + (1 if head >> 1 & 3 == 1 else head >> 3)
        if head & 1:
            return at
    return size + 1


def _measure(file: SourceFile, read: ReadRange, start: int, stop: int) -> int:
    """Measure the content of one frame that does not store its size."""
    frame = replace(file, size_bytes=stop - start, entries=())
    content, at = Unpacked(frame, lambda a, b: read(start + a, start + b)), 0
    while block := content.read(at, at + BLOCK_BYTES):
        at += len(block)
    return at


def _small_reads(file: SourceFile, read: ReadRange) -> ReadRange:
    """A reader for many small reads in ascending order: direct on a disk, buffered in large blocks from a URL."""
    if not is_url(file.place):
        return read
    source = RangeFile(read, file.size_bytes)

    def buffered(start: int, stop: int) -> bytes:
        source.seek(start)
        data = b""
        while len(data) < stop - start and (more := source.read(stop - start - len(data))):
            data += more
        return data

    return buffered


def _with_index(file: SourceFile, read: ReadRange) -> SourceFile:
    from shardmill.sources.compressed.gzip import LEAST_SPACING_BYTES, build_index, parse_index

    spacing = max(_spacing(file), LEAST_SPACING_BYTES)
    known = [file.place, file.size_bytes, file.tag, file.edges, spacing]
    name = hashlib.sha256(repr(known).encode()).hexdigest()[:24] + ".gzidx"
    store = open_store(_index_folder())
    try:
        index = parse_index(store.get(name))
    except (FileNotFoundError, SourceError):
        data = build_index(file, RangeFile(read, file.size_bytes), read, spacing)
        store.put(name, data)
        index = parse_index(data)
    places = [*index.entries, (file.size_bytes, index.unpacked_bytes)]
    pieces = ((b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise([(0, 0), *places[1:]]))
    return _with_entries(file, pieces, f"{store.url}/{name}")


def _index_folder() -> Path:
    """The folder of the indexes, so that a machine scans a file only once; it may be deleted at any time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardmill" / "index"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="shardmill-index-"))
    return cache if os.access(cache, os.W_OK) else Path(tempfile.mkdtemp(prefix="shardmill-index-"))
