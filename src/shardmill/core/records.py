"""JSON records that others may have written: checked by their fields' types when they are read."""

from __future__ import annotations

import functools
import math
from typing import Any, TypeVar

from shardmill.core.errors import CorruptState

_Kind = TypeVar("_Kind")
_LARGEST = 1 << 63


def read_record(kind: type[_Kind], data: bytes, place: str, hint: str = "") -> _Kind:
    """A dataclass from JSON. Keys that it does not have are left out: a later version may have written them.

    >>> from dataclasses import make_dataclass
    >>> read_record(make_dataclass("Point", [("x", int), ("y", int, 0)]), b'{"x": 3, "z": 1}', "point.json")
    Point(x=3, y=0)
    """
    found: _Kind = _checked(lambda adapter: adapter.validate_json(data, strict=True), kind, place, hint)
    return found


def check_record(kind: type[_Kind], values: Any, place: str, hint: str = "") -> _Kind:
    """A dataclass from values that were read as JSON."""
    found: _Kind = _checked(lambda adapter: adapter.validate_python(values), kind, place, hint)
    return found


def read_object(data: bytes, place: str, hint: str = "") -> dict[str, Any]:
    """A JSON object of any content."""
    import json

    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptState(f"{place} is damaged: {_first_line(error)}.", hint=hint) from error
    if not isinstance(found, dict):
        raise CorruptState(f"{place} is damaged: it holds no JSON object.", hint=hint)
    return found


def _checked(read: Any, kind: Any, place: str, hint: str) -> Any:
    from pydantic import ValidationError

    try:
        found = read(_adapter(kind))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        said = f"{where}: {first['msg']}" if where else first["msg"]
        raise CorruptState(f"{place} is damaged: {said}.", hint=hint) from error
    for name in kind.__annotations__:
        if not _is_plain(getattr(found, name)):
            raise CorruptState(f"{place} is damaged: {name} is not a finite 64-bit number.", hint=hint)
    return found


def _is_plain(value: Any) -> bool:
    """Whether numbers are finite and fit into 64 bits."""
    if isinstance(value, (dict, list)):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) < _LARGEST


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
