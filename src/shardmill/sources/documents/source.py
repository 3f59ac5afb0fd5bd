"""One item per document. A shard is some files in order, or some members of one archive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from shardmill.core.arrowtypes import arrow_type
from shardmill.core.errors import SourceError, nearest
from shardmill.core.pool import in_order
from shardmill.core.ranges import Range
from shardmill.core.template import TextTemplate
from shardmill.plan import STREAM_END
from shardmill.sources.base import MAX_ITEM_BYTES, Fields, ItemBatch, Row, Shard, Source, SourceFile, SourceStat
from shardmill.sources.batches import BatchBuilder
from shardmill.sources.columns import build_columns, chosen_types, column_names
from shardmill.sources.content import open_ranges
from shardmill.sources.documents.archives import count_members, cut_archive, read_archive
from shardmill.sources.documents.document import (
    PAGE,
    PAGES,
    TEXT,
    BadDocument,
    Document,
    find_pages,
    has_pages,
    page_starts,
)
from shardmill.sources.documents.member import Member
from shardmill.sources.documents.names import PARSED, is_archive, suffix_of
from shardmill.sources.documents.parsing import Parser, check_installed
from shardmill.sources.files import check_read, check_unchanged
from shardmill.sources.grouping import Piece, group_files
from shardmill.sources.parsing import over_limit

COLUMNS = {"file": "string", "title": "string", TEXT: "string", "bytes": "int64", PAGES: "string"}
# Beside them, for who asks: of a document that is not cut into windows it tells little.
_OFFERED = {**COLUMNS, PAGE: "int64"}
# A file of pictures and fonts may be larger than its text.
_TIMES_TEXT = 8


def describe(stat: SourceStat, fields: Fields) -> dict[str, str]:
    template = TextTemplate.parse(fields.text)
    for name in (*template.names, *column_names(fields)):
        if name not in _OFFERED:
            raise SourceError(f"no field {name!r} in a document.", hint=nearest(name, [*_OFFERED]))
    for file in stat.files:
        check_installed(file.name)
    chosen = chosen_types(fields)
    return {name: chosen.get(name, _OFFERED[name]) for name in column_names(fields)}


def open_source(stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
    return DocumentSource(stat, fields, max_item_bytes)


def count_rows(stat: SourceStat, file: SourceFile) -> int | None:
    return count_members(file) if is_archive(file.name) and file.size_bytes else 1


def sample(stat: SourceStat) -> pa.Schema:
    return pa.schema([pa.field(name, arrow_type(kind)) for name, kind in COLUMNS.items()])


def extents(stat: SourceStat, shard: Shard, number: int) -> list[Range]:
    """All bytes of its files."""
    return [(0, stat.files[number].size_bytes)]


def iter_rows(stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row, int]]:
    source = DocumentSource(stat, Fields(TEXT), MAX_ITEM_BYTES)
    number = stat.files.index(file)
    pieces = (Shard(0, number, *span, weight) for span, weight in source.cut(number, STREAM_END))
    for member in (member for piece in pieces for member in source.members(piece)):
        try:
            row = make_row(member, source.parse(member))
            yield {name: row.get(name) for name in COLUMNS}, file.size_bytes
        except BadDocument as bad:
            raise SourceError(f"{member.path}: {bad}.", hint="Fix it, or remove it.") from None


class DocumentSource(Source):
    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        self._stat = stat
        self._max_item_bytes = max_item_bytes
        self._template = TextTemplate.parse(fields.text)
        self._columns = build_columns(stat, fields)
        self._parser = Parser()
        weakref.finalize(self, self._parser.close)

    def shards(self, target_bytes: int) -> list[Shard]:
        found = group_files((self.cut(n, target_bytes) for n in range(len(self._stat.files))), target_bytes)
        if not found:
            raise SourceError(f"no document in {self._stat.files[0].place}.", hint="Check what the archive holds.")
        return found

    def cut(self, number: int, target_bytes: int) -> list[Piece]:
        """A file in one piece; of an archive, runs of its members."""
        file = self._stat.files[number]
        if is_archive(file.name) and file.size_bytes:
            return cut_archive(file, target_bytes)
        size = max(1, file.content_bytes)
        return [((0, size), size)]

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        builder, rows = BatchBuilder(self._template, self._columns), 0
        numbers: list[int] = []
        for member, found in in_order(self._try, self.members(shard)):
            size = len(found.text) if isinstance(found, Document) else 0
            if not builder.has_room_for(size):
                yield replace(builder.take(rows), files=numbers if shard.files > 1 else ())
                numbers = []
            rows += 1
            numbers.append(member.number)
            if isinstance(found, Document):
                builder.add(make_row(member, found), member.line, size, member.line)
            else:
                builder.add(make_row(member), member.line, size, member.line, bad=found)
        yield replace(builder.take(rows), files=numbers if shard.files > 1 else ())

    def members(self, shard: Shard) -> Iterator[Member]:
        """The documents of a shard, in order."""
        for number in range(shard.files):
            file = self._stat.files[shard.file + number]
            if not (is_archive(file.name) and file.size_bytes):
                yield Member(number, 1, file.name, file.size_bytes, file)
                continue
            alone = len(self._stat.files) == 1
            spans = [(shard.start, shard.stop)] if shard.files == 1 else [s for s, _ in cut_archive(file, STREAM_END)]
            for span in spans:
                prefix = "" if alone else f"{file.name}/"
                yield from read_archive(file, span, number, self.most_bytes, prefix=prefix)

    def _try(self, member: Member) -> tuple[Member, Document | str]:
        """The document, or why it has none."""
        try:
            return member, self.parse(member)
        except BadDocument as bad:
            return member, str(bad)

    def parse(self, member: Member) -> Document:
        if member.why:
            raise BadDocument(member.why)
        data = member.content if isinstance(member.content, bytes) else self._read(member.content, member.path)
        found = self._parser.parse(member.path, data)
        if (size := len(found.text.encode("utf-8", "replace"))) > self._max_item_bytes:
            raise BadDocument(over_limit("its text", size, self._max_item_bytes))
        return found

    def _read(self, file: SourceFile, path: str) -> bytes:
        check_unchanged(file)
        limit = self.most_bytes(path)
        if not file.streamed and file.end > limit:
            raise BadDocument(over_limit("the file", file.end, limit))
        try:
            with open_ranges(file) as read:
                data = read(0, min(file.end, limit + 1)) if file.size_bytes else b""
        except SourceError as error:
            if not file.compression:
                raise
            raise BadDocument(error.message.rstrip(".")) from None
        check_read(file)
        if len(data) > limit:
            raise BadDocument(f"it unpacks to more than {limit / 2**20:.1f} MB")
        return data

    def most_bytes(self, path: str) -> int:
        """How large a file of this name may be."""
        return self._max_item_bytes * (_TIMES_TEXT if PARSED.get(suffix_of(path)) else 1)


def make_row(member: Member, found: Document | None = None) -> Row:
    row: Row = {"file": member.path, "bytes": member.size}
    if found is None:
        return row
    row |= {"title": found.title, TEXT: found.text}
    if has_pages(member.path, found.text):
        row |= {PAGES: " ".join(map(str, page_starts(found.text))), PAGE: find_pages(found.text, [0])[0]}
    return row
