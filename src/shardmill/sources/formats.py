"""The formats of files by name and by suffix: shardmill's own, and those that installed packages bring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from shardmill.core.console import say
from shardmill.core.errors import SourceError, UsageError, nearest
from shardmill.plugins import SourceKind, find, load_part, names
from shardmill.sources.base import Reader

# Kinds of folders that --format accepts, and the format of their files.
FOLDERS = {"datasets": "arrow"}


def format_names() -> list[str]:
    """What --format accepts."""
    return [*names("sources"), *FOLDERS]


def find_format(name: str) -> SourceKind:
    """The format of a source that was discovered."""
    kind: SourceKind | None = find("sources", name)
    if kind is None:
        raise SourceError(
            f"{name!r} is not a supported format.",
            hint=f"Install the package that reads it, or name another. {nearest(name, format_names())}",
        )
    return kind


def find_reader(name: str) -> Reader:
    """The module that reads a format."""
    reader: Reader = load_part(find_format(name).reader)
    return reader


@cache
def every_format() -> tuple[SourceKind, ...]:
    """All formats that can be read. One of a package that cannot be imported is left out, with a warning."""
    return tuple(_loaded())


def _loaded() -> Iterator[SourceKind]:
    for name in names("sources"):
        try:
            yield find_format(name)
        except UsageError as error:
            say(f"warning: {error.message}")


@cache
def suffixes() -> Mapping[str, tuple[str, ...]]:
    """Suffixes and their possible formats; if there are several, the content decides."""
    found: dict[str, tuple[str, ...]] = {}
    for format in every_format():
        for suffix in format.suffixes:
            found[suffix] = (*found.get(suffix, ()), format.name)
    return found


def is_in_lines(name: str) -> bool:
    """Whether this source format, which may also be a database or range, consists of lines of text."""
    kind = find("sources", name)
    return kind is not None and kind.unit != "row"
