"""WebDataset: tar archives in which members that follow one another and share a name are one item, a sample.

`000123.txt` and `000123.json` are the sample `000123` with the columns `txt` and `json`; the fields of the object in
`json` are columns, too, unless a member has their name. A shard is a run of samples of a local tar; one that is
compressed or in a store is read from its start to its end, in one shard.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from shardmill.core.errors import SourceError
from shardmill.core.ranges import Range, split_weighted
from shardmill.core.template import TextTemplate
from shardmill.sources.base import MAX_ITEM_BYTES, Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BatchBuilder
from shardmill.sources.columns import build_columns, column_names
from shardmill.sources.documents.names import is_document, leaves_folder, printable
from shardmill.sources.files import check_read, check_unchanged, file_name
from shardmill.sources.grouping import FileSource, Piece
from shardmill.sources.parsing import BOM, BadLine, over_limit, parse_value
from shardmill.sources.sampling import describe_rows
from shardmill.sources.tar import damaged_archive, read_member, refuse_kind, walk_tar
from shardmill.store import is_url

KEY, JSON = "__key__", "json"
# What the format's own library reads so: the last part of a member's suffix decides.
_INTEGERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_JSON = ("json", "jsn")
# Members without text, beside those that documents lie among.
_BINARY = ("pyd", "pickle", "pth", "ten", "tenbin", "tb", "mp", "msg", "msgpack", "cbor", "gz", "zst", "tar", "zip")
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_OWN = re.compile(r"__[^/]*__(/|$)")
_SAMPLE_ROWS, _SAMPLE_BYTES = 100, 4 << 20


@dataclass(slots=True)
class TarSample:
    """Some members of an archive with a common name: where their headers begin, their size, and the content of those
    that were asked for, or why one has none. `why` says what is wrong with all of it."""

    key: str
    start: int
    size: int = 0
    suffixes: list[str] = field(default_factory=list)
    members: dict[str, bytes | str] = field(default_factory=dict)
    why: str = ""

    def row(self, names: Collection[str] | None = None) -> Row:
        """The columns with these names, or all it has; raises BadLine if one cannot be read."""
        if self.why:
            raise BadLine(self.why)
        row: Row = {KEY: printable(self.key)}
        row |= {suffix: self._value(suffix) for suffix in self.members if names is None or suffix in names}
        if JSON in self.members and (names is None or any(name not in row for name in names)):
            fields = self._value(JSON)
            row = {**fields, **row} if isinstance(fields, dict) else row
        return row

    def _value(self, suffix: str) -> object:
        content, kind = self.members[suffix], suffix.rpartition(".")[2]
        if isinstance(content, str):
            raise BadLine(f"'{suffix}': {content}")
        content = content.removeprefix(BOM)
        if kind in _JSON:
            try:
                return parse_value(content)
            except BadLine as bad:
                raise BadLine(f"'{suffix}': {bad}") from None
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise BadLine(f"'{suffix}' is not valid UTF-8 at byte {error.start + 1}") from None
        return _to_integer(text) if kind in _INTEGERS else text


def _to_integer(text: str) -> int | str:
    """The number, or the text as it is: what fits the column is decided later."""
    return int(text) if re.fullmatch(r"\s*[+-]?\d{1,4000}\s*", text) else text


def iter_samples(
    file: SourceFile, span: Range, names: Collection[str] | None, limit_bytes: int = MAX_ITEM_BYTES
) -> Iterator[TarSample]:
    """The samples that begin in a range, in order, with the content of the members with these names, or of all with
    text; for other names, that of `json`."""
    wanted = {*names, *([JSON] if {*names} - {KEY} else [])} if names is not None else None
    sample: TarSample | None = None
    for archive, about in walk_tar(file, span):
        name = _NAME.fullmatch(about.name)
        if name is None or _OWN.match(about.name) or about.name.rpartition("/")[2].startswith("."):
            continue
        key, suffix = name[1], printable(name[2]).lower()
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = TarSample(key, about.offset)
            if leaves_folder(key):
                sample.why = f"{printable(key)} leads out of the archive's folder"
        if suffix in sample.suffixes:
            sample.why = sample.why or f"it has two members {printable(about.name)}"
        sample.suffixes.append(suffix)
        sample.size += max(1, about.size)
        if suffix in wanted if wanted is not None else _has_text(suffix):
            why = refuse_kind(about) or (over_limit("it", about.size, limit_bytes) if about.size > limit_bytes else "")
            sample.members[suffix] = why or read_member(file, archive, about)
    if sample is not None:
        yield sample


def _has_text(suffix: str) -> bool:
    kind = suffix.rpartition(".")[2]
    return kind not in _BINARY and is_document(f"a.{kind}")


def _refuse_scattered(file: SourceFile, samples: Iterable[TarSample]) -> Iterator[TarSample]:
    """The samples of a whole archive; refuses one whose members lie in two places. Two with equal members are two."""
    seen: dict[str, frozenset[str]] = {}
    for sample in samples:
        suffixes = frozenset(sample.suffixes)
        if sample.key in seen and not suffixes & seen[sample.key]:
            raise SourceError(
                f"{file_name(file.place)}: members of the sample {printable(sample.key)} do not follow one another.",
                hint="Write it again, sorted by name: tar --sort=name -cf …",
            )
        seen[sample.key] = suffixes
        yield sample


def looks_like_samples(file: SourceFile) -> bool:
    """Whether the first members of a tar come in groups with equal suffixes, as those of samples do."""
    try:
        found = [tuple(sorted(each.suffixes)) for each in islice(iter_samples(file, (0, file.end), ()), 4)]
    except SourceError:
        return False
    # The last of several may go on.
    whole = found[:-1] if len(found) == 4 else found
    return len(found) > 1 and len({*whole}) == 1 and len(whole[0]) > 1


class _Look(NamedTuple):
    """Some samples: the first file that has one, their rows, and the suffixes of members without text."""

    head: SourceFile
    rows: list[Row]
    binary: list[str]


@lru_cache(8)
def _look(files: tuple[SourceFile, ...]) -> _Look:
    """Look at the first samples of the first, the middle and the last file."""
    head, rows, binary, reason = None, list[Row](), dict[str, None](), ""
    full = [file for file in files if file.size_bytes]
    for file in dict.fromkeys((full[0], full[len(full) // 2], full[-1])):
        left = _SAMPLE_BYTES
        for sample in islice(_refuse_scattered(file, iter_samples(file, (0, file.end), None)), _SAMPLE_ROWS):
            head = head or file
            binary |= dict.fromkeys(suffix for suffix in sample.suffixes if not _has_text(suffix))
            try:
                rows.append(sample.row())
            except BadLine as bad:
                reason = reason or str(bad)
            left -= sample.size
            if left <= 0:
                break
    if head is None:
        raise SourceError(
            f"no samples in {full[0].place}.",
            hint="Members of a sample share a name, as 000123.txt and 000123.json. One item per file: --format files",
        )
    if not rows:
        raise SourceError(f"{file_name(head.place)} has no readable sample: {reason}.", hint="Write it again.")
    return _Look(head, rows, [*binary])


class SampleSource(FileSource):
    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        super().__init__(stat)
        self._max_item_bytes = max_item_bytes
        self._template = TextTemplate.parse(fields.text)
        self._columns = build_columns(stat, fields)
        names = (*self._template.names, *(column.name for column in self._columns))
        self._names = {name for name in names if name not in stat.origin}

    def shards(self, target_bytes: int) -> list[Shard]:
        found = super().shards(target_bytes)
        if binary := _look(self._stat.files).binary:
            self.notes = [f"Members without text are left out: {', '.join(binary)}."]
        return found

    def cut(self, file: int, target_bytes: int) -> list[Piece]:
        found = self._stat.files[file]
        if not found.size_bytes:
            return []
        if _is_stream(found):
            return [((0, found.end), max(1, found.content_bytes))]
        starts, sizes = _layout(found)
        bounds = [*starts, found.size_bytes]
        return [((bounds[a], bounds[b]), sum(sizes[a:b])) for a, b in split_weighted(sizes, target_bytes)]

    def count_between(self, shard: Shard, later: Shard) -> int:
        starts, _ = _layout(self._stat.files[shard.file])
        return bisect.bisect_left(starts, later.start) - bisect.bisect_left(starts, shard.start)

    def read_piece(self, shard: Shard) -> Iterator[ItemBatch]:
        file, rows = self._stat.files[shard.file], 0
        builder = BatchBuilder(self._template, self._columns, self.origins.of(shard))
        samples = iter_samples(file, (shard.start, shard.stop), self._names, self._max_item_bytes)
        for sample in _refuse_scattered(file, samples) if _is_stream(file) else samples:
            size = sum(len(content) for content in sample.members.values() if isinstance(content, bytes))
            if not builder.has_room_for(size):
                yield builder.take(rows)
            rows += 1
            try:
                if size > self._max_item_bytes:
                    raise BadLine(over_limit("the sample", size, self._max_item_bytes))
                builder.add(sample.row(self._names), rows, size, sample.start)
            except BadLine as bad:
                builder.add_bad(str(bad), rows, size, sample.start)
        yield builder.take(rows)


def _is_stream(file: SourceFile) -> bool:
    return bool(file.compression) or is_url(file.place)


@lru_cache(64)
def _layout(file: SourceFile) -> tuple[list[int], list[int]]:
    """Where each sample begins, and its size."""
    check_unchanged(file)
    found = [(s.start, s.size) for s in _refuse_scattered(file, iter_samples(file, (0, file.end), ()))]
    return [start for start, _ in found], [size for _, size in found]


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return SampleSource(stat, fields, max_item_bytes)


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns in a sample of the rows."""
    found = _look(stat.files)
    names = {name for row in found.rows for name in row}
    for name in (*TextTemplate.parse(fields.text).names, *column_names(fields)):
        if name in found.binary and name not in names:
            raise SourceError(
                f"{name!r} in {file_name(found.head.place)} is no text, and is left out.",
                hint=f"Fields that can be read: {', '.join(sorted(names))}.",
            )
    return describe_rows(found.head, found.rows, fields)


def sample(stat: SourceStat) -> list[Row]:
    return _look(stat.files).rows


def count_rows(stat: SourceStat, file: SourceFile) -> int:
    if _is_stream(file):
        return sum(1 for _ in iter_samples(file, (0, file.end), ()))
    return len(_layout(file)[0])


def extents(stat: SourceStat, shard: Shard, number: int) -> list[Range]:
    return [(shard.start, shard.stop)]


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    """Yield all samples, with the members that have text."""
    check_unchanged(file)
    for sample in _refuse_scattered(file, iter_samples(file, (0, file.end), None)):
        try:
            yield sample.row(), sample.start + sample.size
        except BadLine as bad:
            raise damaged_archive(file, f"sample {printable(sample.key)}: {bad}") from bad
    check_read(file)
