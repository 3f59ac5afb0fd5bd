"""Plain text of any encoding, and what its title is."""

from __future__ import annotations

import codecs
import re

from shardmill.sources.documents.document import BadDocument, Document
from shardmill.sources.encodings import wide_encoding

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_HEAD_BYTES = 8 << 10
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
_UNDERLINED = re.compile(r"^(\S.*)\n(=+|-+|~+)[ \t]*$", re.MULTILINE)


def parse_text(data: bytes) -> Document:
    return Document(decode(data))


def parse_markup(data: bytes) -> Document:
    """Text with headings, as Markdown and reStructuredText write them; the first is its title."""
    text = decode(data)
    found = [match for match in (_HEADING.search(text), _UNDERLINED.search(text)) if match]
    return Document(text, min(found, key=lambda match: match.start())[1].strip() if found else "")


def decode(data: bytes, declared: str = "") -> str:
    """The text: by its byte order mark, as UTF-8, as UTF-16 by its zeros, as it declares, else as Windows-1252.

    >>> decode(b"caf\\xc3\\xa9"), decode(b"caf\\xe9"), decode(b"\\xff\\xfea\\x00")
    ('café', 'café', 'a')
    """
    marked = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "")
    try:
        return data.decode(marked or "utf-8") if marked or b"\0" not in data[:_HEAD_BYTES] else _decode_wide(data)
    except UnicodeDecodeError:
        pass
    if declared:
        try:
            return data.decode(declared)
        except (LookupError, UnicodeDecodeError):
            pass
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _decode_wide(data: bytes) -> str:
    if not wide_encoding(data[:16]):
        raise BadDocument("it is not text: it has zero bytes")
    return data.decode("utf-16-be" if data[0] == 0 else "utf-16-le")
