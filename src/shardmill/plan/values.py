"""Types of options that several have: names, places, sizes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from shardmill.core.passwords import withhold
from shardmill.plan.limits import parse_bytes


def _as_tuple(value: Any) -> Any:
    """One name, comma-separated names, or a list of either."""
    if value is None:
        return ()
    if isinstance(value, str | Path):
        value = [value]
    return tuple(part.strip() for v in value for part in str(v).split(",") if part.strip())


def _as_columns(value: Any) -> Any:
    """Comma-separated names, or a list of names as they are: a column of a source may have a comma in its name."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else _as_tuple(value)


def _as_places(value: Any) -> Any:
    """Places without passwords: a spec is stored and shown."""
    return tuple(withhold(str(v)) for v in ([value] if isinstance(value, str | Path) else value))


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Columns = Annotated[tuple[str, ...], BeforeValidator(_as_columns)]
Places = Annotated[tuple[str, ...], BeforeValidator(_as_places)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
# A path or a URL; Python may give a Path.
Place = Annotated[str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)]
Address = Annotated[str, BeforeValidator(lambda value: withhold(str(value)))]

NAMES, PLACES = "str | Sequence[str]", "str | Sequence[str]"
