"""Recognizes by their first bytes files that should be lines of text but are something else."""

from __future__ import annotations

from collections.abc import Sequence

from shardmill.core.errors import SourceError
from shardmill.sources.base import SourceFile
from shardmill.sources.encodings import wide_encoding
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


def _other(file: SourceFile, what: str, kind: str, hint: str) -> SourceError:
    return SourceError(f"{file_name(file.place)} is {what} and cannot be read as {kind}.", hint=hint)
