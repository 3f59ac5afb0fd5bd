"""Which files of a folder belong to the latest version of the table in it, if there is one.

A table keeps the files of earlier versions, so reading all of them would bring deleted rows back. The plan names the
files of the version it found, and so stays with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

from shardmill.core.errors import SourceError
from shardmill.plan import NumberedColumn
from shardmill.sources.tables import delta, iceberg

# By their paths in the folder, the files of a version, each with the columns that the table says it has.
Files = Mapping[str, tuple[NumberedColumn, ...]]

# What is in the paths of files that only tables have, and which of those paths are such files'.
_MARKS: dict[str, tuple[str, re.Pattern[str]]] = {
    "Delta": (delta.LOG, re.compile(rf"(.*/)?{delta.LOG}/.+")),
    "Iceberg": (iceberg.METADATA, re.compile(rf"(.*/)?{iceberg.FOLDER}/[^/]+{re.escape(iceberg.METADATA)}(?:\.gz)?")),
}


def may_be_table(keys: Iterable[str]) -> bool:
    """Whether a folder with these files may be a table; quick, since there may be millions."""
    parts = [part for part, _ in _MARKS.values()]
    return any(part in key for key in keys for part in parts)


def choose_table(place: str, keys: Collection[str], read: Callable[[str], bytes], version: str = "") -> Files | None:
    """The files of the table that a folder is; None if it is none. `keys` are the paths of all its files, which `read`
    reads. Of an Iceberg table, `version` may name a metadata file other than the latest."""
    for kind, (part, mark) in _MARKS.items():
        roots = {found[1] or "" for key in keys if part in key and (found := mark.fullmatch(key))}
        if not roots:
            continue
        if root := min(roots, key=len).rstrip("/"):
            raise SourceError(
                f"{place} has {_an(kind)} table inside it: {root}.", hint=f"Name one table: {place.rstrip('/')}/{root}"
            )
        files = _live_files(kind, place.rstrip("/"), keys, read, version)
        if not files:
            raise SourceError(f"{place}: this {kind} table has no rows.", hint="Write some, or name another.")
        if lost := sorted({*files} - {*keys}):
            raise SourceError(
                f"{place}: {len(lost):,} files of this {kind} table are not there, among them {lost[0]}.",
                hint="Restore them, or the version of the table before they went.",
            )
        return files
    return None


def _live_files(kind: str, place: str, keys: Collection[str], read: Callable[[str], bytes], version: str) -> Files:
    if kind == "Delta":
        return dict.fromkeys(delta.live_files(place, keys, read), ())
    return iceberg.live_files(place, keys, read, version)


def _an(kind: str) -> str:
    return f"an {kind}" if kind[0] in "AEIOU" else f"a {kind}"
