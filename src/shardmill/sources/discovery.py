"""Discovers a source: its files, their format, and the types of the kept columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from shardmill.core.errors import SourceError, nearest
from shardmill.core.template import TextTemplate
from shardmill.plugins import SourceKind, packages_of
from shardmill.sources.arrow.saved import choose_saved
from shardmill.sources.base import Fields, SourceFile, SourceStat
from shardmill.sources.chunks import HEAD
from shardmill.sources.compressed.detection import COMPRESSED_SUFFIXES, find_compression
from shardmill.sources.compressed.entries import OnProgress, find_entries
from shardmill.sources.configs import Subset, choose_config
from shardmill.sources.content import open_ranges
from shardmill.sources.documents.choosing import (
    DOCUMENTS,
    LINES,
    choose_documents,
    name_documents,
    refuse_samples,
    refuse_unclear,
)
from shardmill.sources.files import WINDOW_BYTES, digest_edges, empty_source, file_name, open_packed
from shardmill.sources.formats import (
    FOLDERS,
    SHEETS,
    choose_source,
    find_format,
    find_reader,
    format_names,
    suffixes,
    tell_suffixes,
)
from shardmill.sources.growing import follow
from shardmill.sources.mds import MDS
from shardmill.sources.mds.index import choose_shards
from shardmill.sources.parsing import BOM
from shardmill.sources.places import WILD, Found, expand
from shardmill.sources.signatures import refuse_other_kinds
from shardmill.sources.splits import ALL_CONFIGS, ALL_SPLITS, choose_split, split_of
from shardmill.sources.unchanged import settled
from shardmill.store import is_url

# Of suffixes whose files are not read, as many are told.
_TOLD = 6


def discover_files(
    places: Sequence[str],
    fields: Fields,
    format: str | None,
    on_progress: OnProgress,
    on_note: Callable[[str], None] = lambda note: None,
) -> SourceStat:
    """Find the files at the places, in order, and check that they have the fields."""
    from shardmill.sources.columns import chosen_types, column_names
    from shardmill.sources.listing import list_fields
    from shardmill.sources.origin import asked_origin, offered, without_origin

    TextTemplate.parse(fields.text)
    left: Counter[str] = Counter()
    kind, files = find_files(places, format, fields.split, fields.config, left)
    if left:
        on_note(_tell_left(left))
    files = follow(kind, files) if fields.follow else files
    format_found = find_format(kind)
    files = files if format_found.unit == "file" or format_found.binary else find_entries(files, on_progress)
    reader, found = find_reader(kind), SourceStat(kind, files, {})
    offers = offered([file.place for file in files]) if find_format(kind).located else {}
    origin = asked_origin(fields, offers, lambda: list_fields(found)) if offers else ()
    columns = reader.describe(found, without_origin(fields, origin))
    asked = {*TextTemplate.parse(fields.text).names, *column_names(fields)}
    found = replace(found, files=tuple(_with_columns(file, asked) for file in files))
    if not origin:
        return replace(found, columns=columns)
    known = {**offers, **columns, **chosen_types(fields)}
    files = tuple(replace(file, origin=file.place) for file in found.files)
    return SourceStat(kind, files, {name: known[name] for name in column_names(fields)}, origin)


def find_files(
    places: Sequence[str],
    format: str | None = None,
    split: str = ALL_SPLITS,
    config: str = ALL_CONFIGS,
    left: Counter[str] | None = None,
) -> tuple[str, tuple[SourceFile, ...]]:
    """The format and the files at the places, in order; `left` counts those that are not read by their suffix."""
    if not places:
        raise SourceError("no source given.", hint="Name a file, a folder, a glob or a URL.")
    if format is not None and format not in format_names():
        raise SourceError(f"{format!r} is not a supported format.", hint=nearest(format, format_names()))
    if (chosen := choose_source(places)) is not None:
        return _find_by_scheme(chosen, places, format)
    left = Counter() if left is None else left
    picked = {place: _choose(place, expand(place), format, split, config, left) for place in places}
    found = {f.place: f for place in places for f in picked[place]}
    files = tuple(_fingerprint(f) for f in found.values())
    if not any(file.size_bytes for file in files):
        raise empty_source(files)
    files, heads = find_compression(files, _packing)
    kind = FOLDERS.get(format, format) if format else _one_format(files)
    if find_format(kind).unit == "file":
        paths = {f.place: path for place in places for f, path in name_documents(place, picked[place], len(places) > 1)}
        files = tuple(replace(file, path=paths[file.place]) for file in files)
        if format is None:
            refuse_samples(files)
    elif not find_format(kind).compressible:
        _refuse_packed(files, kind)
    elif not find_format(kind).binary:
        refuse_other_kinds(files, heads, kind)
    return kind, files


def _find_by_scheme(kind: SourceKind, places: Sequence[str], format: str | None) -> tuple[str, tuple[SourceFile, ...]]:
    if not kind.finder:
        raise SourceError(f"{places[0]} has no files to read.", hint="Name a file, a folder, a glob or a URL.")
    found: tuple[str, tuple[SourceFile, ...]] = kind.part("finder")(places, format)
    return found


def _choose(
    place: str, found: Sequence[Found], format: str | None, split: str, config: str, left: Counter[str]
) -> Sequence[Found]:
    """Select the data files at one place: every file the user named; from a folder, those of a known format, of one
    config and of one split."""
    saved = choose_saved(place, found, asked=format is not None) if format is None or format in FOLDERS else []
    if config not in ("", ALL_CONFIGS) and (saved or WILD.search(place) or (found and found[0].named)):
        raise SourceError(f"--config {config} has no meaning for {place}.", hint="Name a whole folder, or omit it.")
    if saved:
        return saved
    if found and found[0].named:
        return choose_split(place, found, lambda f: split_of(file_name(f.place)), split or ALL_SPLITS)
    if format in (None, MDS) and not WILD.search(place) and (shards := choose_shards(place, found)):
        return choose_split(place, shards, lambda f: split_of(f.entry.key), split)
    ends = {f.place: _suffix(f.place) for f in found}
    known = suffixes()
    kinds = {place: known.get(end, ()) for place, end in ends.items()}
    subset = Subset(found, {})
    if config != ALL_CONFIGS and not WILD.search(place) and (config or format != DOCUMENTS):
        subset = choose_config(place, found, config, lambda f: kinds[f.place] not in ((), (DOCUMENTS,)))
    format, chosen = _choose_format(place, subset.files, format, kinds)
    if len(chosen) < len(subset.files):
        left.update(Counter(ends[f.place] for f in subset.files) - Counter(ends[f.place] for f in chosen))
    if format == DOCUMENTS or (WILD.search(place) and not split):
        return chosen
    if not subset.splits:
        return choose_split(place, chosen, lambda f: split_of(f.entry.key), split)
    pairs = [(f, each) for f in chosen for each in subset.splits[f.place]]
    return list(dict.fromkeys(f for f, _ in choose_split(place, pairs, lambda pair: pair[1], split)))


def _choose_format(
    place: str, found: Sequence[Found], format: str | None, kinds: Mapping[str, Sequence[str]]
) -> tuple[str | None, Sequence[Found]]:
    """The files of the format, or of any that is known; `kinds` has the formats that the name of a file allows."""
    if format is None:
        # What accompanies data, as README.md does, is not read with it.
        documents = [f for f in found if DOCUMENTS in kinds[f.place]]
        data = [f for f in found if kinds[f.place] and DOCUMENTS not in kinds[f.place]]
        if documents and all(kinds[f.place] == (SHEETS,) for f in data):
            found, data = [f for f in found if kinds[f.place] != (SHEETS,)], []
        if data and all(kinds[f.place] == (LINES,) for f in data):
            refuse_unclear(place, data, documents)
        format = DOCUMENTS if not data and any(kinds[f.place] for f in found) else None
    if format == DOCUMENTS:
        return format, choose_documents(place, found)
    chosen = data if format is None else [f for f in found if format in kinds[f.place]]
    if not chosen and format:
        chosen = [f for f in found if not kinds[f.place]]
    if not chosen:
        raise SourceError(
            f"{place} has no readable file: {len(found)} files, none of a known format.",
            hint=f"{tell_suffixes()} Name another format with --format.",
        )
    return format, chosen


def _tell_left(left: Counter[str]) -> str:
    """
    >>> _tell_left(Counter({".png": 3, "": 1}))
    'Left out by suffix: 3 .png, 1 without one.'
    """
    told = [f"{count:,} {suffix or 'without one'}" for suffix, count in left.most_common(_TOLD)]
    others = left.total() - sum(count for _, count in left.most_common(_TOLD))
    return f"Left out by suffix: {', '.join([*told, *([f'{others:,} others'] if others else [])])}."


def _split(place: str) -> tuple[str, str]:
    stem, dot, suffix = file_name(place).rpartition(".")
    return (stem, dot + suffix.lower()) if stem else (suffix, "")


def _packing(file: SourceFile) -> str:
    """The compression suffix of a file, or ""."""
    suffix = _split(file.place)[1]
    return suffix if suffix in COMPRESSED_SUFFIXES else ""


def _suffix(place: str) -> str:
    """The suffix that names the format, without a compression suffix."""
    stem, suffix = _split(place)
    return _split(stem)[1] if suffix in COMPRESSED_SUFFIXES else suffix


def _one_format(files: Sequence[SourceFile]) -> str:
    first: dict[str, SourceFile] = {}
    for file in files:
        suffix = _suffix(file.place)
        if suffix not in suffixes():
            raise SourceError(
                f"{file_name(file.place)}: the name does not tell its format.",
                hint=f"{tell_suffixes()} Name it with --format {'|'.join(format_names())}.",
            )
        if file.size_bytes or len(suffixes()[suffix]) == 1 or DOCUMENTS in suffixes()[suffix]:
            first.setdefault(_kind(file, suffixes()[suffix]), file)
    if len(first) > 1:
        a, b, *_ = first.values()
        raise SourceError(
            f"{file_name(a.place)} and {file_name(b.place)} have different formats.",
            hint="Give one format at a time, for example with a glob: 'data/*.jsonl'.",
        )
    return next(iter(first))


def _refuse_packed(files: Sequence[SourceFile], kind: str) -> None:
    for file in files:
        if file.compression:
            raise SourceError(
                f"{file_name(file.place)}: {kind} compressed with {file.compression} is not supported.",
                hint="Decompress it first, with gunzip, unzstd, bunzip2 or unxz.",
            )


def _kind(file: SourceFile, kinds: Sequence[str]) -> str:
    """The format of a file among those of its suffix: .json can be JSON Lines or one array, .tar has documents."""
    if len(kinds) == 1:
        return kinds[0]
    if DOCUMENTS in kinds:
        return DOCUMENTS
    if not {"json", "jsonl"} >= {*kinds}:
        raise SourceError(
            f"{file_name(file.place)}: several packages read {_suffix(file.place)} files: "
            f"{', '.join(packages_of(('sources', kind) for kind in kinds).values())}.",
            hint=f"Name the format: --format {'|'.join(kinds)}",
        )
    with open_ranges(file) as read:
        start = read(0, min(WINDOW_BYTES, file.end)).removeprefix(BOM).lstrip()
    if start.startswith(b"[") or HEAD.match(start):
        return "json"
    if start[:1] in (b"{", b""):
        return "jsonl"
    raise SourceError(
        f"{file_name(file.place)} is JSON, but neither an array nor one JSON object per line.",
        hint="Write it as [{…}, {…}] or one object per line.",
    )


def _with_columns(file: SourceFile, asked: Collection[str]) -> SourceFile:
    """The file with only those columns of its table that are read."""
    return replace(file, columns=tuple(each for each in file.columns if each.name in asked)) if file.columns else file


def _fingerprint(found: Found) -> SourceFile:
    file = SourceFile(found.place, found.entry.size, found.entry.tag, "", columns=found.columns)
    if is_url(found.place):
        return replace(file, edges=found.edges)
    since = settled(found.place, found.entry.size, found.entry.tag)
    with open_packed(file) as read:
        return replace(file, edges=digest_edges(read, found.entry.size), settled=since)
