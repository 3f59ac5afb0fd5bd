"""Recognizes by their first bytes files that should be lines of text but are something else."""

from __future__ import annotations

from collections.abc import Sequence

from shardmill.core.errors import SourceError
from shardmill.sources.base import SourceFile
from shardmill.sources.files import file_name
from shardmill.sources.formats import every_format

HEAD_BYTES = 512
_OTHERS = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"%PDF-": "PDF",
    b"SQLite format 3\0": "an SQLite database",
    b"\x89PNG": "a picture",
}


def refuse_other_kinds(files: Sequence[SourceFile], heads: Sequence[bytes], kind: str) -> None:
    """Refuse files whose first bytes are not those of UTF-8 text; `heads` holds these bytes, decompressed."""
    read = [format for format in every_format() if format.magic]
    for file, head in zip(files, heads, strict=True):
        for format in read:
            if head.startswith(format.magic) and not file.compression:
                raise _other(file, format.title, kind, f"Rename it, or use --format {format.name}.")
        for magic, what in {**_OTHERS, **{format.magic: format.title for format in read}}.items():
            if head.startswith(magic):
                raise _other(file, what, kind, "Extract or convert it first.")
        if head[257:262] == b"ustar":
            raise _other(file, "a tar archive", kind, "Extract it first with tar -x.")
        if encoding := wide_encoding(head):
            convert = f"iconv -f {encoding} -t UTF-8 {file_name(file.place)}"
            raise _other(file, f"text in {encoding}", kind, f"Convert it to UTF-8: {convert}")


def wide_encoding(head: bytes) -> str:
    """The encoding of UTF-16 or UTF-32 text, by its byte order mark or its zero bytes; "" for any other.

    >>> wide_encoding("plain".encode("utf-16-le")), wide_encoding(b"plain"), wide_encoding(bytes(8))
    ('UTF-16', '', '')
    """
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    even, odd = head[0:16:2], head[1:16:2]
    one_is_zero = any(even) != any(odd)
    return "UTF-16" if one_is_zero and len(head) >= 4 and 0 not in (odd if any(odd) else even) else ""


def _other(file: SourceFile, what: str, kind: str, hint: str) -> SourceError:
    return SourceError(f"{file_name(file.place)} is {what} and cannot be read as {kind}.", hint=hint)
