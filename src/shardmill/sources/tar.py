"""Tar archives, read in place by the headers of their members: nothing is unpacked to a disk."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Self

from shardmill.core.errors import SourceError
from shardmill.core.ranges import Range
from shardmill.sources.base import SourceFile
from shardmill.sources.content import open_content
from shardmill.sources.documents.names import printable
from shardmill.sources.files import file_name

# Long names and attributes are in headers of their own, which are held in memory.
_LARGEST_HEADER_BYTES = 1 << 20
_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


def walk_tar(file: SourceFile, span: Range) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members whose headers begin in a range, but for folders."""
    with open_content(file) as handle:
        handle.seek(span[0]) if span[0] else None
        try:
            with tarfile.open(fileobj=handle, mode="r|" if file.streamed else "r:", tarinfo=_Header) as archive:
                for about in archive:
                    if about.offset >= span[1]:
                        break
                    if not about.isdir():
                        yield archive, about
                    # It would keep all that it has seen.
                    archive.members = []  # type: ignore[attr-defined]
        except (_BrokenHeader, tarfile.ReadError, EOFError) as error:
            raise damaged_archive(file, f"not a whole tar archive: {error}") from error


def read_member(file: SourceFile, archive: tarfile.TarFile, about: tarfile.TarInfo) -> bytes:
    """The content of a member that is a regular file."""
    handle = archive.extractfile(about)
    assert handle is not None
    try:
        content = handle.read()
    except tarfile.ReadError:
        content = b""
    if len(content) != about.size:
        raise damaged_archive(file, f"it ends inside {printable(about.name)}")
    return content


def refuse_kind(about: tarfile.TarInfo) -> str:
    """Why a member that is not a regular file has no content; "" if it is one."""
    if about.isreg():
        return ""
    return f"it is a {'link, which is not followed' if about.islnk() or about.issym() else 'device'}"


def damaged_archive(file: SourceFile, why: str) -> SourceError:
    return SourceError(f"{file_name(file.place)}: {why}.", hint=f"Fetch or write {file.place} again.")


class _BrokenHeader(Exception):
    pass


class _Header(tarfile.TarInfo):
    """A header. Where Python's reader takes a broken one for the end of the archive, this one says so."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        at = archive.offset
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise _BrokenHeader(f"{error} at byte {at:,}") from error

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _HEADERS and found.size > _LARGEST_HEADER_BYTES:
            raise _BrokenHeader(f"a header of {found.size:,} bytes")
        return found
