"""Makes a run or a table ready to be searched by the workers of another run."""

from __future__ import annotations

from pathlib import Path

from shardmill.core.passwords import withhold
from shardmill.postgres.places import find_table, is_table
from shardmill.run.result import Run
from shardmill.store import is_url


def make_searchable(place: str, *, quiet: bool = True) -> str:
    """Write the passages of a run if they are not there. Returns the place for a worker in any folder, no password."""
    if is_table(place):
        find_table(place)  # Keeps the password for the connections of this process and its workers.
        scheme, _, path = place.partition(":")
        return f"embedded:{Path(path).absolute()}" if scheme == "embedded" else withhold(place)
    if not is_url(place):
        place = str(Path(place).expanduser().absolute())
    Run(place).index(graph=False, quiet=quiet)
    return place
