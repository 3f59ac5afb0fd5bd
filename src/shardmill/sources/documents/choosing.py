"""Which files of a folder are documents, and what each is called there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from shardmill.core.errors import SourceError
from shardmill.sources.base import SourceFile
from shardmill.sources.documents.names import is_document, is_tar, printable
from shardmill.sources.files import file_name
from shardmill.sources.places import Found
from shardmill.store import is_url

# The format of documents, and of files of lines and of archives that may be documents.
DOCUMENTS, LINES, SAMPLES = "files", "text", "webdataset"
# Ten files or more that are no larger, on average, are more likely documents than lines; so are fewer that other
# documents outnumber.
_MANY, _SMALL_BYTES = 10, 64 << 10


class UnclearFormat(SourceError):
    """Files that may be read in two ways: `formats` has each by what an item of it is."""

    def __init__(self, message: str, formats: Mapping[str, str]) -> None:
        ways = (f"--format {format} for one item per {unit}" for unit, format in formats.items())
        super().__init__(message, hint=f"Give {', or '.join(ways)}.")
        self.formats = formats

    def is_settled_by(self, format: str) -> bool:
        """Whether a run of this format says what they are."""
        return format in self.formats.values()


def refuse_unclear(place: str, texts: Sequence[Found], others: Sequence[Found]) -> None:
    """Refuse text files of a folder that may be documents, by their number and size; `others` surely are."""
    total = sum(f.entry.size for f in texts)
    many = len(texts) + len(others) >= _MANY or len(others) > len(texts)
    if not many or total > _SMALL_BYTES * len(texts):
        return
    told = f"{len(texts):,} small text file{'s' if len(texts) > 1 else ''}"
    told += f" and {len(others):,} other document{'s' if len(others) > 1 else ''}" if others else ""
    raise UnclearFormat(
        f"{place} has {told}: is a line an item, or a file?",
        {"line": LINES, "file": DOCUMENTS},
    )


def refuse_samples(files: Sequence[SourceFile]) -> None:
    """Refuse archives that may be a WebDataset, by the first members of the first."""
    from shardmill.sources.webdataset import looks_like_samples

    first = next((file for file in files if file.size_bytes and is_tar(file.name)), None)
    if first is not None and looks_like_samples(first):
        raise UnclearFormat(
            f"{file_name(first.place)} has files that share a name, as a WebDataset: is an item a file, or a sample?",
            {"file": DOCUMENTS, "sample": SAMPLES},
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
