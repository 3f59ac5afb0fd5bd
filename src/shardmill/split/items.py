"""One item as a line of JSON, and how much of a file has been read when so much of its content has."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Callable
from typing import Any

from shardmill.errors import SourceError
from shardmill.plan import SourceFile

At = Callable[[int], None]


def encode_item(item: Any, index: int) -> bytes:
    try:
        return json.dumps(
            item, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain_value
        ).encode()
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"item {index:,} cannot be written as JSON: {error}.",
            hint="Give dicts of texts, numbers, lists and dicts; turn other values into text first.",
        ) from error


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no place in JSON")


def read_share(file: SourceFile, position: int) -> int:
    """How many bytes of the file have been read when so much of its content has."""
    return min(file.size_bytes, file.size_bytes * position // max(1, file.content_bytes))
