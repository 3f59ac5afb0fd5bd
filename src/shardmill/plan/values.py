"""Types of options that several have: names, places, sizes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from shardmill.core.passwords import withhold
from shardmill.plan.limits import parse_bytes, parse_share, parse_usd


def _as_tuple(value: Any) -> Any:
    """One name, comma-separated names, or a list of either."""
    if value is None:
        return ()
    return tuple(part.strip() for v in _each(value) for part in str(v).split(",") if part.strip())


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _as_columns(value: Any) -> Any:
    """Comma-separated names, or a list of names as they are: a column of a source may have a comma in its name."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else _as_tuple(value)


def _as_places(value: Any) -> Any:
    """Places without passwords: a spec is stored and shown."""
    wrong = [type(v).__name__ for v in _each(value) if not isinstance(v, str | os.PathLike)]
    if wrong:
        raise ValueError(f"a value of type {wrong[0]} is neither a path nor a URL")
    places = tuple(withhold(str(v)) for v in _each(value))
    if any("\0" in place for place in places):
        raise ValueError("a path or a URL has no zero byte")
    return places


def _as_condition(text: str) -> str:
    from shardmill.core.where.parsing import parse_condition

    if text:
        parse_condition(text)
    return text


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Columns = Annotated[tuple[str, ...], BeforeValidator(_as_columns)]
Places = Annotated[tuple[str, ...], BeforeValidator(_as_places)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Usd = Annotated[float, BeforeValidator(parse_usd)]
Share = Annotated[float, BeforeValidator(parse_share)]
# A path or a URL; Python may give a Path.
Place = Annotated[str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)]
Address = Annotated[str, BeforeValidator(lambda value: withhold(str(value)))]

# A condition on the columns of a row, in a small subset of SQL.
Condition = Annotated[str, AfterValidator(_as_condition)]

NAMES, PLACES, SOURCES = "str | Sequence[str]", "str | Sequence[str]", "Source"
