"""Parts: Parquet files that are checked by whoever reads them, in whole or a few columns.

Pages have checksums of their own, which Arrow compares. The footer has none in the format, so a part has one in front
of it, in bytes that other readers skip. A part without it was written by an earlier version, and is compared with the
digest of its commit. In front of that, a part may have an appendix, with a checksum too.
Design: docs/design/proof-and-trust.md
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.errors import CorruptState, UsageError
from shardmill.store import locate
from shardmill.store.digests import DigestFile
from shardmill.store.pruned import is_pruned, pruned
from shardmill.store.recipes import ComposedPart, find_recipe, run_of

_MARK = b"shardmill footer crc32:"
_MARK_BYTES = len(_MARK) + 4
_APPENDIX = b"shardmill appendix crc32, bytes:"
_APPENDIX_BYTES = len(_APPENDIX) + 12
_PARQUET, _END_BYTES = b"PAR1", 8
# Most footers are shorter, and are read at once.
_TAIL_BYTES = 64 << 10
_READ_BYTES = 4 << 20

# Parts of earlier versions whose digest was right, by place and digest: each is read through once per process.
_proved: set[tuple[str, str]] = set()


class PartFile(DigestFile):
    """A part that is being written: hashed as a whole, with a checksum in front of its footer."""

    _held: bytearray | None = None

    def write(self, data: Any) -> int:
        if self._held is None:
            return super().write(data)
        view = memoryview(data).cast("B")
        self._held += view
        return len(view)

    def tell(self) -> int:
        return self.size_bytes + len(self._held or b"")

    @contextmanager
    def footer(self, appendix: bytes = b"") -> Iterator[None]:
        """What is written inside is the footer, up to the end of the file."""
        if appendix:
            self.write(appendix)
            self.write(_APPENDIX + zlib.crc32(appendix).to_bytes(4, "little") + len(appendix).to_bytes(8, "little"))
        self._held = bytearray()
        yield
        footer, self._held = bytes(self._held), None
        self.write(_MARK + zlib.crc32(footer).to_bytes(4, "little") + footer)


def open_part(
    file: Any, place: str, digest: str = "", data: Any = None, **options: Any
) -> tuple[pq.ParquetFile | ComposedPart, bool]:
    """A part whose footer is sound, and whether it has checksums. Its pages are compared with theirs as they are read.

    A part without checksums must have the `digest` of its commit, of which the beginning is enough; none is given if
    it was compared already. `data` is read instead of `file`, if that is faster. Rows that a part has in parts of
    earlier editions are read from there.
    """
    own, marked = open_own(file, place, digest, data, **options)
    recipe = find_recipe(own)
    return (own if recipe is None else ComposedPart(own, run_of(place), recipe, _open_named)), marked


def _open_named(stack: ExitStack, place: str, digest: str) -> pq.ParquetFile:
    with readable(place):
        store, key = locate(place)
        return open_own(stack.enter_context(store.reader(key)), place, digest)[0]


def open_own(
    file: Any, place: str = "", digest: str = "", data: Any = None, **options: Any
) -> tuple[pq.ParquetFile, bool]:
    """As `open_part`, without the rows that are elsewhere."""
    footer = _read_footer(file)
    if footer is None and digest:
        _compare_digest(file, place, digest)
    file.seek(0)
    metadata = pq.read_metadata(pa.BufferReader(footer)) if footer is not None and digest else None
    opened = pq.ParquetFile(data or file, metadata=metadata, page_checksum_verification=bool(digest), **options)
    return opened, footer is not None


def read_appendix(file: IO[bytes]) -> bytes:
    """What a part has in front of its footer; b"" if it has nothing there. Damage is an OSError."""
    footer = _read_footer(file)
    if footer is None:
        return b""
    stop = file.seek(0, io.SEEK_END) - len(footer) - _MARK_BYTES
    if stop < _APPENDIX_BYTES or not (mark := _read_end(file, stop, _APPENDIX_BYTES)).startswith(_APPENDIX):
        return b""
    crc, size = (int.from_bytes(each, "little") for each in (mark[-12:-8], mark[-8:]))
    appendix = _read_end(file, stop - _APPENDIX_BYTES, size) if size <= stop - _APPENDIX_BYTES else b""
    if len(appendix) != size or zlib.crc32(appendix) != crc:
        raise OSError("its appendix is not what was written")
    return appendix


def _read_footer(file: IO[bytes]) -> bytes | None:
    """The footer, as it was written; None if it has no checksum, or another."""
    size = file.seek(0, io.SEEK_END)
    tail = _read_end(file, size, _TAIL_BYTES)
    if len(tail) < _END_BYTES or tail[-4:] != _PARQUET:
        return None
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + _END_BYTES
    if footer_bytes + _MARK_BYTES > min(size, len(tail)):
        tail = _read_end(file, size, footer_bytes + _MARK_BYTES)
    before, footer = tail[:-footer_bytes][-_MARK_BYTES:], tail[-footer_bytes:]
    return footer if before == _MARK + zlib.crc32(footer).to_bytes(4, "little") else None


def _read_end(file: IO[bytes], stop: int, count: int) -> bytes:
    """The bytes before `stop`, `count` of them if there are as many."""
    start = max(0, stop - count)
    file.seek(start)
    return file.read(stop - start)


def _compare_digest(file: IO[bytes], place: str, digest: str) -> None:
    if (place, digest) in _proved:
        return
    if not hash_file(file).startswith(digest):
        raise OSError("it is not what was committed")
    _proved.add((place, digest))


def hash_file(file: IO[bytes]) -> str:
    total = hashlib.sha256()
    file.seek(0)
    while block := file.read(_READ_BYTES):
        total.update(block)
    return total.hexdigest()


@contextmanager
def readable(place: str) -> Iterator[None]:
    """Name the part, as `RUN/parts/NAME`, in an error about its content."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, FileNotFoundError):
            raise
        gone = isinstance(error, FileNotFoundError)
        if gone and is_pruned(run := place.rpartition("/parts/")[0]):
            raise pruned(run) from error
        raise damaged(place, "" if gone else str(error)) from error


def damaged(place: str, why: str, kind: type[UsageError] = CorruptState) -> UsageError:
    """The error of a part that is damaged, or gone."""
    run, _, name = place.rpartition("/parts/")
    said = f"is damaged: {why.strip().partition(chr(10))[0].rstrip('.')}" if why else "is gone"
    return kind(
        f"{place} {said}.",
        hint=f"Delete the commit of its shard, {run}/commits/{name[:6]}.*, and run `shardmill resume {run}`: "
        "the shard is done again.",
    )
