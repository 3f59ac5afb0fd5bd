"""Sources by name, suffix and scheme: shardmill's own, and those that installed packages bring."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from shardmill.core.errors import SourceError, nearest
from shardmill.core.passwords import withhold
from shardmill.plugins import SourceKind, declared, find, find_by_scheme, load_part, schemes
from shardmill.plugins.builtin import BUILTIN

# Kinds of folders that --format accepts, and the format of their files.
FOLDERS = {"datasets": "arrow"}
# Spreadsheets, which lie among documents, too.
SHEETS = "excel"
_QUERIES = "shardmill.sources.sql"
_STORES = ("file", "s3", "gs", "az", "hf", "https")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//)?")


def format_names() -> list[str]:
    """What --format accepts."""
    return [*(kind.name for kind in every_format()), *FOLDERS]


def find_format(name: str) -> SourceKind:
    """The kind of a source that was discovered."""
    kind: SourceKind | None = find("sources", name)
    if kind is None:
        raise SourceError(
            f"{name!r} is not a supported format.",
            hint=f"Install the package that reads it, or name another. {nearest(name, format_names())}",
        )
    return kind


def find_reader(name: str) -> Any:
    """The module that reads a source: a `Reader`, or a `PlaceReader` if it is known by its scheme."""
    return load_part(find_format(name).reader or _QUERIES)


@cache
def every_format() -> tuple[SourceKind, ...]:
    """All formats of files that can be read."""
    return tuple(kind for kind in declared("sources") if not kind.schemes)


@cache
def suffixes() -> Mapping[str, tuple[str, ...]]:
    """Suffixes and their possible formats: shardmill's own, or else those of packages."""
    found: dict[str, tuple[str, ...]] = {}
    for format in every_format():
        for suffix in format.suffixes:
            found[suffix] = (*found.get(suffix, ()), format.name)
    return {s: tuple(n for n in names if n in BUILTIN["sources"]) or names for s, names in found.items()}


def tell_suffixes() -> str:
    """The suffixes that are known, but for most of the documents', which are many."""
    data = [suffix for kind in every_format() if kind.unit != "file" for suffix in kind.suffixes]
    return f"Known suffixes: {', '.join(dict.fromkeys(data))}, and documents as .pdf, .docx, .html, .md."


def choose_source(places: Sequence[str], query: str = "") -> SourceKind | None:
    """The source that the places name by their scheme, or the database of a query; None if they are files."""
    from shardmill.sources.sql import choose_database, find_database

    if query:
        return choose_database(places)
    kinds: list[SourceKind | None] = [
        find_by_scheme("sources", place) or _find_folder(place) or find_database(place) for place in places
    ]
    kind = next(filter(None, kinds), None)
    if kind is None:
        return None
    place = withhold(places[kinds.index(kind)])
    if kind.database:
        raise SourceError(
            f"{place} is a database.", hint='Name the rows to read: --query "SELECT id, content FROM documents"'
        )
    if any(other is not kind for other in kinds):
        raise SourceError(f"{place} cannot be combined with other sources.", hint="Name sources of one kind.")
    return kind


def _find_folder(place: str) -> SourceKind | None:
    """The source that is no file, but a folder with a suffix of its own."""
    kinds: tuple[SourceKind, ...] = tuple(declared("sources"))
    return next((kind for kind in kinds if kind.folders and place.rstrip("/").endswith(kind.folders)), None)


def unknown_scheme(place: str) -> SourceError | None:
    """The refusal of an address whose scheme nothing reads; None if it has no scheme."""
    if (found := _SCHEME.match(place)) is None:
        return None
    known = [scheme.rstrip(":/") for scheme in (*_STORES, "manifest", *schemes("sources"))]
    return SourceError(
        f"No source reads addresses that begin with {found[0]!r}.",
        hint=f"{nearest(found[0].rstrip(':/'), known)} Packages bring others: shardmill plugins",
    )
