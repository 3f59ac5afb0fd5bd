"""Expands places into files: a file, a folder or a glob, on a disk or at a URL."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shardmill.core.errors import SourceError, nearest
from shardmill.plan import NumberedColumn
from shardmill.sources.chunks import listed_chunks
from shardmill.sources.files import read_object, readable, stat_file
from shardmill.sources.formats import unknown_scheme
from shardmill.sources.manifest import MANIFEST, read_manifest
from shardmill.sources.pipe import is_pipe
from shardmill.sources.tables.choosing import choose_table, may_be_table
from shardmill.sources.tables.iceberg import FOLDER, METADATA
from shardmill.store import Entry, is_url, open_store
from shardmill.store.clients import SCHEMES
from shardmill.store.hub import SCHEME, HubPlace

WILD = re.compile(r"[*?\[]")
_LANCE = re.compile(r"(?:^|/)_versions/[^/]+\.manifest$")
# A version of an Iceberg table: its folder and the name of a metadata file there.
_ICEBERG = re.compile(rf"(?:(.+)/)?{FOLDER}/([^/]+{re.escape(METADATA)})")
# A plan names each of its files, and every worker reads the plan: more are refused. A list may name as many as it will.
MOST_FILES = 2_000_000


class Found(NamedTuple):
    """A file, and whether the user or a table named it or it was found in a folder or by a glob; what identifies its
    content, if a listing tells that; the columns that its table says it has."""

    place: str
    entry: Entry
    named: bool
    edges: str = ""
    columns: tuple[NumberedColumn, ...] = ()


def expand(place: str) -> list[Found]:
    """The files at one place, sorted; those of a manifest in its order."""
    if place.startswith(MANIFEST):
        return [Found(address, entry, named=True) for address, entry in read_manifest(place)]
    if place.startswith("file://"):
        place = place.removeprefix("file://")
    if table := _ICEBERG.fullmatch(place):
        place = table[1] or "."
    found = list(itertools.islice(_expand_url(place) if is_url(place) else _expand_local(place), MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise _too_many(place)
    return sorted(_of_table(place, found, table[2] if table else ""), key=lambda f: f.place)


def _of_table(place: str, found: list[Found], version: str = "") -> list[Found]:
    """Of a folder that is a table, the files of its latest version, or of the one that the user named."""
    if WILD.search(place) or (found and found[0].named):
        return found
    if inside := next((f.entry.key for f in found if ".manifest" in f.entry.key and _LANCE.search(f.entry.key)), None):
        dataset = f"{place.rstrip('/')}/{_LANCE.split(inside)[0]}".rstrip("/")
        raise SourceError(f"{place} is or has a Lance dataset.", hint=f"Name it as such: lance:{dataset}")
    if not may_be_table(f.entry.key for f in found):
        return found
    at = {f.entry.key: f.place for f in found}
    files = choose_table(place, at, lambda key: read_object(at[key]), version)
    if files is None:
        return found
    return [f._replace(named=True, columns=files[f.entry.key]) for f in found if f.entry.key in files]


def _expand_local(place: str) -> Iterator[Found]:
    if is_pipe(place):
        raise SourceError(f"{place} is a pipe: it is read once, into a run folder.", hint="Name one: --out runs/mine")
    path = Path(place).expanduser().absolute()
    mode = 0
    with readable(place), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        with readable(place):
            # A folder is listed whole, in memory, to be sorted.
            if _has_too_many(str(path)):
                raise _too_many(place)
            store = open_store(path)
            chunks = listed_chunks(store, place)
            for entry in store.list() if chunks is None else chunks:
                yield Found(f"{store.url.rstrip('/')}/{entry.key}", entry, named=False)
    elif stat.S_ISREG(mode):
        yield _stat(str(path), named=True)
    elif mode:
        raise SourceError(f"{place} is not a regular file.", hint="Write its data to a file first.")
    elif WILD.search(place):
        matched = [match for match in glob.glob(str(path), recursive=True) if os.path.isfile(match)]
        if not matched:
            raise _no_match(place)
        yield from (_stat(match, named=False) for match in matched)
    else:
        raise unknown_scheme(place) or SourceError(f"{place}: no such file or folder.", hint=_near_by(path))


def _has_too_many(folder: str) -> bool:
    count, folders = 0, [folder]
    while folders:
        with os.scandir(folders.pop()) as found:
            for item in found:
                if item.name.startswith("."):
                    continue
                if item.is_dir():
                    folders.append(item.path)
                    continue
                count += 1
                if count > MOST_FILES:
                    return True
    return False


def _too_many(place: str) -> SourceError:
    return SourceError(
        f"{place} has more than {MOST_FILES:,} files, and a plan names each of its files.",
        hint="Put documents into archives, as `tar -cf docs.tar docs/` does, and rows into fewer files; "
        "or run over one part at a time, by a glob or by manifest:LIST.",
    )


def _expand_url(place: str) -> Iterator[Found]:
    scheme, _, rest = place.partition("://")
    if scheme not in (*SCHEMES, "memory") and (refusal := unknown_scheme(place)):
        raise refusal
    if scheme in ("http", "https"):
        yield _stat_http(place)
        return
    if scheme == SCHEME:
        yield from _list_hub(place)
        return
    if WILD.search(rest):
        yield from _match_url(place)
        return
    named = "/" in rest.rstrip("/") and not rest.endswith("/")
    if named and (entry := stat_file(place)):
        yield Found(place, entry, named=True)
        return
    folder = f"{scheme}://{rest.rstrip('/')}"
    count = 0
    store = open_store(folder)
    chunks = listed_chunks(store, place)
    for entry in store.list() if chunks is None else chunks:
        if not _hidden(entry.key):
            count += 1
            yield Found(f"{folder}/{entry.key}", entry, named=False)
    if not count:
        raise SourceError(f"{place}: no such file or folder.", hint="Check the bucket, the name and the credentials.")


def _stat_http(place: str) -> Found:
    """Find one file over HTTP, which has no folders; a URL with a query is refused."""
    if "?" in place:
        raise SourceError(f"{place.partition('?')[0]}: URLs with a query are not read.", hint="Download it first.")
    entry = None if place.endswith("/") else stat_file(place)
    if entry is None:
        raise SourceError(f"{place}: no such file.", hint="Over HTTP, name each file: there are no folders.")
    return Found(place, entry, named=True)


def _list_hub(place: str) -> Iterator[Found]:
    from shardmill.sources.hub import list_dataset

    wild = WILD.search(place)
    folder = place[: wild.start()].rpartition("/")[0] if wild else place
    path = HubPlace.parse(place).path
    pattern = re.compile(translate(path)) if wild else None
    matched = 0
    for address, entry, digest in list_dataset(folder):
        if not _hidden(entry.key) and (pattern is None or pattern.fullmatch(entry.key)):
            matched += 1
            yield Found(address, entry, named=entry.key == path, edges=digest)
    if not matched:
        raise _no_match(place) if wild else SourceError(f"{place}: no such file or folder.", hint="Check its path.")


def _match_url(place: str) -> Iterator[Found]:
    folder = place[: WILD.search(place).start()].rpartition("/")[0]  # type: ignore[union-attr]
    pattern = re.compile(translate(place[len(folder) + 1 :]))
    matched = [e for e in open_store(folder).list() if pattern.fullmatch(e.key) and not _hidden(e.key)]
    if not matched:
        raise _no_match(place)
    yield from (Found(f"{folder}/{entry.key}", entry, named=False) for entry in matched)


def translate(pattern: str) -> str:
    """A glob as a regular expression, by the rules of `glob`: `**/` is any number of folders.

    >>> translate("**/part-*.jsonl")
    '(?:[^/]+/)*part\\\\-[^/]*\\\\.jsonl'
    """
    out = ""
    for token in re.findall(r"\*\*/|\*+|\?|\[!?\]?[^\]]*\]|.", pattern, re.DOTALL):
        if token == "**/":
            out += "(?:[^/]+/)*"
        elif token.startswith("*"):
            out += "[^/]*" if len(token) == 1 else ".*"
        elif token == "?":
            out += "[^/]"
        elif len(token) > 1:
            out += "[" + token[1:].replace("!", "^", 1) if token.startswith("[!") else token
        else:
            out += re.escape(token)
    return out


def _hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))


def _stat(place: str, named: bool) -> Found:
    entry = stat_file(place)
    if entry is None:
        raise SourceError(f"{place}: no such file or folder.")
    return Found(place, entry, named)


def _no_match(place: str) -> SourceError:
    return SourceError(f"{place} matches no file.", hint="Quote the pattern, so that the shell does not expand it.")


def _near_by(path: Path) -> str:
    try:
        names = sorted(name for name in os.listdir(path.parent) if not name.startswith("."))
    except OSError:
        return f"The folder {path.parent} does not exist either."
    return nearest(path.name, names) if names else f"The folder {path.parent} is empty."
