"""What a source is: its files, their format, and the types of the columns that are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from shardmill.errors import SourceError, nearest
from shardmill.sources.base import Fields, SourceFile, SourceStat
from shardmill.sources.files import WINDOW_BYTES, ReadRange, empty_source, file_name, open_ranges
from shardmill.sources.lines import BOM
from shardmill.sources.places import Found, expand
from shardmill.sources.template import TextTemplate
from shardmill.store import is_url

EXTENSIONS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
FORMATS = ["jsonl", "text", "csv", "tsv", "parquet"]


def discover(places: Sequence[str], fields: Fields, format: str | None = None) -> SourceStat:
    """Find the files at the places, in their order, and check that they hold the fields."""
    TextTemplate.parse(fields.text)
    kind, files = find_files(places, format)
    return SourceStat(kind, files, _describe(kind, files, fields))


def find_files(places: Sequence[str], format: str | None = None) -> tuple[str, tuple[SourceFile, ...]]:
    """The format and the files at the places, in their order."""
    if not places:
        raise SourceError("no source is given.", hint="Name a file, a folder, a glob or a URL.")
    if format is not None and format not in FORMATS:
        raise SourceError(f"{format!r} is not a format that is read.", hint=nearest(format, FORMATS))
    found = {f.place: f for place in places for f in _choose(place, expand(place), format)}
    files = tuple(_fingerprint(f) for f in found.values())
    if not any(file.size_bytes for file in files):
        raise empty_source(files)
    return format or _one_format(files), files


def _describe(kind: str, files: Sequence[SourceFile], fields: Fields) -> dict[str, str]:
    if kind == "parquet":
        from shardmill.sources import parquets

        return parquets.describe(files, fields)
    if kind in ("csv", "tsv"):
        from shardmill.sources import csvs

        return csvs.describe(files, fields, kind)
    from shardmill.sources import sampling

    return sampling.describe(files, fields) if kind == "jsonl" else sampling.describe_text(files, fields)


def _choose(place: str, found: list[Found], format: str | None) -> list[Found]:
    """Of the files at one place, those with data: all that the user named, and in folders those of a known kind."""
    for f in found:
        stem, extension = _split(f.place)
        if extension in COMPRESSED and (f.named or _split(stem)[1] in EXTENSIONS):
            raise SourceError(
                f"{file_name(f.place)}: compressed files are not read yet; decompress it first.",
                hint="gunzip, unzstd, bunzip2 and unxz do that.",
            )
    if found and found[0].named:
        return found
    kinds = {f.place: EXTENSIONS.get(_split(f.place)[1]) for f in found}
    chosen = [f for f in found if kinds[f.place] and format in (None, kinds[f.place])]
    if not chosen and format:
        chosen = [f for f in found if kinds[f.place] is None]
    if not chosen:
        raise SourceError(
            f"{place} holds no file that can be read: {len(found)} files, none of a known kind.",
            hint=f"Known are {', '.join(EXTENSIONS)}. Name another kind with --format.",
        )
    return chosen


def _split(place: str) -> tuple[str, str]:
    stem, dot, extension = file_name(place).rpartition(".")
    return (stem, dot + extension.lower()) if stem else (extension, "")


def _one_format(files: Sequence[SourceFile]) -> str:
    first: dict[str, SourceFile] = {}
    for file in files:
        extension = _split(file.place)[1]
        if extension not in EXTENSIONS:
            raise SourceError(
                f"{file_name(file.place)}: its kind cannot be told from its name.",
                hint=f"Known are {', '.join(EXTENSIONS)}. Name one with --format {'|'.join(FORMATS)}.",
            )
        first.setdefault(EXTENSIONS[extension], file)
        if extension == ".json":
            _check_json(file)
    if len(first) > 1:
        a, b, *_ = first.values()
        raise SourceError(
            f"{file_name(a.place)} and {file_name(b.place)} are of different formats.",
            hint="Give one format at a time, for example with a glob: 'data/*.jsonl'.",
        )
    return next(iter(first))


def _check_json(file: SourceFile) -> None:
    with open_ranges(file) as read:
        start = read(0, min(WINDOW_BYTES, file.size_bytes)).removeprefix(BOM).lstrip()[:1]
    if start not in (b"{", b""):
        what = "a JSON array" if start == b"[" else "JSON"
        raise SourceError(
            f"{file_name(file.place)} is {what}, not one JSON object a line.",
            hint=f"Convert it: jq -c '.[]' {file_name(file.place)} > {_split(file.place)[0]}.jsonl",
        )


def _fingerprint(found: Found) -> SourceFile:
    file = SourceFile(found.place, found.entry.size, found.entry.tag, "")
    if is_url(found.place):
        return file
    with open_ranges(file) as read:
        return SourceFile(found.place, found.entry.size, found.entry.tag, _edges(read, found.entry.size))


def _edges(read: ReadRange, size: int) -> str:
    digest = hashlib.sha256(read(0, min(WINDOW_BYTES, size)))
    digest.update(read(max(size - WINDOW_BYTES, 0), size))
    return digest.hexdigest()[:16]
