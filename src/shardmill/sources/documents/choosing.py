"""Which files of a folder are documents, and what each is called there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from shardmill.core.errors import SourceError
from shardmill.sources.documents.names import is_document, printable
from shardmill.sources.files import file_name
from shardmill.sources.places import Found
from shardmill.store import is_url

# The format of documents.
DOCUMENTS = "files"


def choose_documents(place: str, found: Sequence[Found]) -> list[Found]:
    """The documents of a folder or glob. A link that leads out of a folder is refused; a glob names what it matches."""
    chosen = [f for f in found if is_document(f.place)]
    if not chosen:
        raise SourceError(
            f"{place} has no document: {len(found)} files of other kinds.",
            hint="Name the files themselves to read them as text.",
        )
    folder = os.path.abspath(os.path.expanduser(place.removeprefix("file://")))
    if not is_url(place) and os.path.isdir(folder):
        for f in chosen:
            _refuse_link(place, folder, f.place)
    return chosen


def _refuse_link(place: str, folder: str, file: str) -> None:
    inside = os.path.realpath(folder)
    target = os.path.realpath(file)
    if os.path.commonpath([inside, target]) != inside:
        raise SourceError(
            f"{printable(file)} is a link out of {place}.", hint="Remove it, or name the files to read by a glob."
        )


def name_documents(place: str, found: Sequence[Found], several: bool) -> Iterator[tuple[Found, str]]:
    """Each file with its path in the folder; if there are `several` places, with the folder's own name before it."""
    folder = _folder_of(place)
    start = folder.rpartition("/")[0] if several else folder
    for f in found:
        inside = bool(start) and not f.named and f.place.startswith(f"{start}/")
        yield f, printable(f.place[len(start) + 1 :] if inside else file_name(f.place))


def _folder_of(place: str) -> str:
    """The folder that a place names; of a glob, that before the first wild card."""
    place = place.removeprefix("file://")
    place = place if is_url(place) else os.path.abspath(os.path.expanduser(place))
    wild = re.search(r"[*?\[]", place)
    return place[: wild.start()].rpartition("/")[0] if wild and not os.path.isdir(place) else place.rstrip("/")
