"""Which files of a folder are documents, and what each is called there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from shardmill.core.errors import SourceError
from shardmill.sources.documents.names import is_document, printable
from shardmill.sources.files import file_name
from shardmill.sources.places import Found
from shardmill.store import is_url

# The format of documents, and of files of lines that may be documents.
DOCUMENTS, LINES = "files", "text"
# Ten files or more that are no larger, on average, are more likely documents than lines.
_MANY, _SMALL_BYTES = 10, 64 << 10


class LinesOrFiles(SourceError):
    """A folder of small text files, each of which may be one item or many."""

    def is_settled_by(self, format: str) -> bool:
        """Whether a run of this format says what they are."""
        return format in (LINES, DOCUMENTS)


def refuse_unclear(place: str, texts: Sequence[Found], others: Sequence[Found]) -> None:
    """Refuse text files of a folder that may be documents, by their number and size; `others` surely are."""
    total = sum(f.entry.size for f in texts)
    if len(texts) + len(others) < _MANY or total > _SMALL_BYTES * len(texts):
        return
    beside = f" and {len(others):,} other document{'s' if len(others) > 1 else ''}" if others else ""
    raise LinesOrFiles(
        f"{place} has {len(texts):,} small text files{beside}: is a line an item, or a file?",
        hint=f"Give --format {LINES} for one item per line, or --format {DOCUMENTS} for one item per file.",
    )


def choose_documents(place: str, found: Sequence[Found]) -> list[Found]:
    """The documents of a folder or glob. A link that leads out of a folder is refused; a glob names what it matches."""
    chosen = [f for f in found if is_document(f.place)]
    if not chosen:
        raise SourceError(
            f"{place} has no document: {len(found)} files without text.", hint="Name a folder of documents."
        )
    folder = os.path.abspath(os.path.expanduser(place.removeprefix("file://")))
    if not is_url(place) and os.path.isdir(folder):
        _refuse_links(place, os.path.realpath(folder), [f.place for f in chosen])
    return chosen


def _refuse_links(place: str, inside: str, files: Sequence[str]) -> None:
    """Refuse links that lead out of a folder. Where the folders in it are is looked up once for each."""
    real = lru_cache(os.path.realpath)
    for file in files:
        target = os.path.realpath(file) if os.path.islink(file) else real(os.path.dirname(file))
        if target != inside and not target.startswith(f"{inside.rstrip('/')}/"):
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
