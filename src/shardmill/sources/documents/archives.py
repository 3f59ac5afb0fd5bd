"""Members of zip and tar archives, read in place: nothing is unpacked to a disk.

A shard of a zip is a range of its members. A local tar is cut where a member's header begins; one that is compressed or
in a store is read from its start to its end, in one shard.
"""

from __future__ import annotations

import contextlib
import lzma
import stat as modes
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache

from shardmill.core.ranges import Range, split_weighted
from shardmill.sources.base import SourceFile
from shardmill.sources.content import open_content
from shardmill.sources.documents.member import Member
from shardmill.sources.documents.names import is_member, is_zip, leaves_folder, printable
from shardmill.sources.files import check_read, check_unchanged
from shardmill.sources.grouping import Piece
from shardmill.sources.parsing import over_limit
from shardmill.sources.tar import damaged_archive, read_member, refuse_kind, walk_tar
from shardmill.store import is_url

# A member that is larger than this and unpacks to N times its size is a bomb: text packs to a tenth or so.
_BOMB_BYTES, _BOMB_TIMES = 1 << 20, 200
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, ValueError, RuntimeError, OSError)
_OUTSIDE = "its name leads out of the archive's folder"

# How large a member with this name may be.
Limit = Callable[[str], int]


def cut_archive(file: SourceFile, target_bytes: int) -> list[Piece]:
    """Pieces of about `target_bytes`; none if the archive has no document."""
    if _is_stream(file):
        size = max(1, file.content_bytes)
        return [((0, file.end), size)]
    starts, sizes = _layout(file)
    bounds = [*starts, file.size_bytes if not is_zip(file.name) else len(starts)]
    return [((bounds[a], bounds[b]), max(1, sum(sizes[a:b]))) for a, b in split_weighted(sizes, target_bytes)]


def count_members(file: SourceFile) -> int | None:
    """The number of documents; None if all of a remote file would have to be read for that."""
    if _is_stream(file):
        return None if is_url(file.place) else sum(1 for _ in _walk_tar(file, (0, file.end)))
    return len(_layout(file)[0])


def _is_stream(file: SourceFile) -> bool:
    return not is_zip(file.name) and (bool(file.compression) or is_url(file.place))


@lru_cache(64)
def _layout(file: SourceFile) -> tuple[list[int], list[int]]:
    """Where each document begins, its number in a zip or its offset in a tar, and its size."""
    check_unchanged(file)
    if is_zip(file.name):
        with _open_zip(file) as archive:
            found = [max(1, about.compress_size) for about in _zip_members(archive)]
        return list(range(len(found))), found
    headers = [(about.offset, max(1, about.size)) for _, about in _walk_tar(file, (0, file.end))]
    return [offset for offset, _ in headers], [size for _, size in headers]


def read_archive(file: SourceFile, span: Range, number: int, limit: Limit, *, prefix: str = "") -> Iterator[Member]:
    """The documents of a piece, in order, with their content; what is wrong with one is said of it."""
    check_unchanged(file)
    read = _read_zip if is_zip(file.name) else _read_tar
    for line, (name, size, content) in enumerate(read(file, span, limit), 1):
        path = prefix + printable(name)
        if isinstance(content, str):
            yield Member(number, line, path, size, why=f"{path}: {content}")
        else:
            yield Member(number, line, path, size, content)
    check_read(file)


_Read = Iterator[tuple[str, int, bytes | str]]


def _read_zip(file: SourceFile, span: Range, limit: Limit) -> _Read:
    with _open_zip(file) as archive:
        for about in _zip_members(archive)[slice(*span)]:
            name, size = about.filename, about.file_size
            why = _refusal(name, size, limit(name))
            if modes.S_ISLNK(about.external_attr >> 16):
                why = "it is a link, which is not followed"
            elif about.flag_bits & 1:
                why = "it is encrypted: it opens with a password alone"
            elif not why and size > max(_BOMB_BYTES, _BOMB_TIMES * about.compress_size):
                why = f"it unpacks to {size // max(1, about.compress_size):,} times its size, as bombs do"
            yield name, size, why or _read_member(archive, about)


def _read_member(archive: zipfile.ZipFile, about: zipfile.ZipInfo) -> bytes | str:
    try:
        return archive.read(about)
    except _DAMAGE as error:
        # Those of bz2 have no number, those of a disk do.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return f"it is damaged in the archive: {error}"


def _zip_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [about for about in archive.infolist() if not about.filename.endswith("/") and _is_item(about.filename)]


@contextlib.contextmanager
def _open_zip(file: SourceFile) -> Iterator[zipfile.ZipFile]:
    with open_content(file) as handle:
        try:
            archive = zipfile.ZipFile(handle)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise damaged_archive(file, f"not a whole zip archive: {error}") from error
        with archive:
            yield archive


def _read_tar(file: SourceFile, span: Range, limit: Limit) -> _Read:
    for archive, about in _walk_tar(file, span):
        why = refuse_kind(about) or _refusal(about.name, about.size, limit(about.name))
        yield about.name, about.size, why or read_member(file, archive, about)


def _walk_tar(file: SourceFile, span: Range) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The documents whose headers begin in a range."""
    return ((archive, about) for archive, about in walk_tar(file, span) if _is_item(about.name))


def _is_item(name: str) -> bool:
    return leaves_folder(name) or is_member(name)


def _refusal(name: str, size: int, limit_bytes: int) -> str:
    if leaves_folder(name):
        return _OUTSIDE
    return over_limit("it", size, limit_bytes) if size > limit_bytes else ""
