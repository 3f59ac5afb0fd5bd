"""Encodes one item as a line of JSON, and converts an offset in the content to bytes of the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardmill.core.errors import SourceError
from shardmill.core.jsonlines import encode_json
from shardmill.plan import SourceFile

At = Callable[[int], None]


def encode_item(item: Any, index: int) -> bytes:
    try:
        return encode_json(item)
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"item {index:,} cannot be written as JSON: {error}.",
            hint="Use dicts of strings, numbers, lists and dicts; convert other values to text first.",
        ) from error


def read_share(file: SourceFile, position: int) -> int:
    """The bytes of the file read so far, at offset `position` in its content."""
    return min(file.size_bytes, file.size_bytes * position // max(1, file.content_bytes))
