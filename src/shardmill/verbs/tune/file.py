"""The file of a study: a path or, for a pod without it, a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shardmill.core.errors import SpecError
from shardmill.plan.spec import parse_tables, read_spec
from shardmill.store import is_url, locate

TABLES = ("work", "space", "execution")


def read_tables(place: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """The tables of study.toml."""
    place = os.fspath(place)
    if not is_url(place):
        return read_spec(Path(place), TABLES)
    store, name = locate(place)
    try:
        text = store.get(name).decode()
    except FileNotFoundError as error:
        raise SpecError(f"{place}: no such file.") from error
    except ValueError as error:
        raise SpecError(f"{place}: {error}.") from error
    return parse_tables(text, place, TABLES)
