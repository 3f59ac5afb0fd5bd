"""Starts `map`: fits the map, places every vector, and writes the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardmill.core.errors import UsageError
from shardmill.run.request import Request
from shardmill.run.result import Run


def start(request: Request) -> Run:
    """Map the vectors of an embed run, of files or of a query."""
    from shardmill.verbs.map.making import make_map

    options, how = request.options, request.how
    if not request.out:
        raise UsageError("No --out was given.", hint="Name a folder for the map: --out maps/mine")
    fitting = {name: getattr(options, name) for name in ("method", "sample", "seed", "points")}
    wanted = {**request.work, **request.params, **fitting, "marks": _read_marks(options.mark) or options.marks}
    return make_map(
        wanted, request.execution, request.out, **{name: how[name] for name in ("fresh", "resume", "quiet")}
    )


def _read_marks(path: str) -> Sequence[str]:
    if not path:
        return ()
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}.", hint="--mark takes a text file, one text per line."
        ) from error
