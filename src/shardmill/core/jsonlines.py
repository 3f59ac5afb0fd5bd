"""Values as JSON, the same bytes wherever lines of JSON are written."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Callable
from typing import Any


def plain_value(value: Any) -> Any:
    """A value that JSON has no type for, as a text; TypeError for one that has no usual text."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    raise TypeError(f"JSON has no type for {type(value).__name__}")


def json_encoder(plain: Callable[[Any], Any]) -> Callable[[Any], str]:
    """What encodes a value. `plain` converts what JSON has no type for; NaN is a ValueError."""
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain).encode


_encode = json_encoder(plain_value)


def encode_json(value: Any) -> bytes:
    """One line of JSON, without its end.

    >>> encode_json({"a": [1, 2.5], "b": "ü"}).decode()
    '{"a":[1,2.5],"b":"ü"}'
    """
    return _encode(value).encode()
