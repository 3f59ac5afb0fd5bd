"""Recognizes text in wide encodings by its first bytes."""

from __future__ import annotations


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
