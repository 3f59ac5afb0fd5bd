"""The formats that a result is written in: one table. Another kind is one more entry."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.core.compression import SUFFIXES
from shardmill.core.errors import UsageError, nearest

_FILES = "shardmill.results.files"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """A kind of file, with what writes it as "module:attribute", imported when it is used.

    Exactly one of these is given. `rows` opens an open file for rows of a schema, so that it can be cut into several
    files and sent to a pipe, where `piped` is used if there is one. `chosen` writes the rows and columns that were
    chosen, at a place. A `packed` one may be compressed as a
    whole, with a second suffix. One that is a `folder` is no single file.
    """

    name: str
    suffixes: tuple[str, ...]
    rows: str = ""
    piped: str = ""
    chosen: str = ""
    packed: bool = False
    folder: bool = False


FILE_KINDS = (
    FileKind(name="parquet", suffixes=(".parquet",), rows=f"{_FILES}.parquet:open_parquet"),
    FileKind(name="npy", suffixes=(".npy",), chosen=f"{_FILES}.npy:write_npy"),
    FileKind(name="jsonl", suffixes=(".jsonl",), rows=f"{_FILES}.jsonl:open_jsonl", packed=True),
    FileKind(name="csv", suffixes=(".csv",), rows=f"{_FILES}.csv:open_csv", packed=True),
    FileKind(name="tsv", suffixes=(".tsv",), rows=f"{_FILES}.csv:open_tsv", packed=True),
    FileKind(
        name="arrow",
        suffixes=(".arrow", ".feather"),
        rows=f"{_FILES}.arrow:open_arrow",
        piped=f"{_FILES}.arrow:open_stream",
    ),
    FileKind(name="faiss", suffixes=(".faiss",), chosen=f"{_FILES}.faiss:write_faiss"),
    FileKind(name="lance", suffixes=(".lance",), chosen=f"{_FILES}.lance:write_lance", folder=True),
)


def _by_suffix() -> dict[str, tuple[FileKind, str]]:
    """Each kind, and how it is compressed as a whole, by its suffix."""
    found = {}
    for kind in FILE_KINDS:
        for suffix in kind.suffixes:
            for compress, end in SUFFIXES.items() if kind.packed else [("none", "")]:
                found[suffix + end] = kind, compress
    return found


BY_SUFFIX = _by_suffix()


def suffix_of(place: str) -> str:
    """The suffix of a kind of file that a name ends in; "" if it ends in none.

    >>> suffix_of("s3://bucket/reviews.v2.jsonl.gz"), suffix_of("reviews.xlsx")
    ('.jsonl.gz', '')
    """
    return max((suffix for suffix in BY_SUFFIX if place.endswith(suffix)), key=len, default="")


def find_suffix(place: str, format: str = "") -> str:
    """The suffix of the kind of file that is written at a place: by its name, or by a format such as "csv.gz"."""
    if format:
        if (suffix := f".{format.removeprefix('.')}") in BY_SUFFIX:
            return suffix
        known = [suffix[1:] for suffix in BY_SUFFIX]
        raise UsageError(f"{format!r} is not a format of files.", hint=nearest(format, known))
    if suffix := suffix_of(place):
        return suffix
    name = place.rstrip("/").rpartition("/")[2]
    seen = name[name.index(".") :] if "." in name.strip(".") else name
    raise UsageError(f"{place}: the name ends in no suffix of a known format.", hint=nearest(seen, [*BY_SUFFIX]))
