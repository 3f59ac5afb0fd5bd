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


def encode_json(value: Any, plain: Callable[[Any], Any] = plain_value) -> bytes:
    """One line of JSON, without its end. `plain` converts what JSON has no type for; NaN is a ValueError.

    >>> encode_json({"a": [1, 2.5], "b": "ü"}).decode()
    '{"a":[1,2.5],"b":"ü"}'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain).encode()
