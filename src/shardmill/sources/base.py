"""The contract of a source: what it contains, how it is cut into shards, and how one shard is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from shardmill.core.ranges import Range
from shardmill.plan import Shard, SourceFile, SourceStat

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardmill.plan.spec import Work

MAX_ITEM_BYTES = 32 << 20
# In place of a column to group by: all rows are one item.
ALL = "*"

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a row are read: a text (a field, several, or a template), the id, columns to keep, and columns
    that only the task reads (`wanted`).

    `keep` entries may name a type: `price:float64`. For a database, `query` selects the rows. Rows that share a value
    of `group_by` are one item. Of a folder with several configs or splits, `config` and `split` name one. Of the items,
    `where` and `take` leave some. Rows of a query tell by `changed_since` whether they have changed; files
    that only grow are read up to their last whole line, to `follow` them. If items are bytes, `picture` is the column
    that has them or says where they are: a path below `root`.
    """

    text: str
    id: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    query: str = ""
    wanted: tuple[str, ...] = ()
    group_by: str = ""
    split: str = ""
    where: str = ""
    take: float | None = None
    config: str = ""
    changed_since: str = ""
    follow: bool = False
    picture: str = ""
    root: str = ""

    @classmethod
    def of(cls, work: Work) -> Fields:
        return cls(
            *(work.text, work.id, work.keep, work.query, work.fields, work.group_by),
            config=work.config,
            split=work.split,
            where=work.where,
            take=work.take,
            changed_since=work.changed_since,
            follow=work.follow,
            picture=work.picture,
            root=work.root,
        )


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """Consecutive items of one shard. Every item is a row, including the bad ones.

    `bad` maps a row without usable text to the reason; the text of that row is null. `lines` has the line number of
    each row in the shard, from 1 (the row number if the format has no lines). In a shard of several files, `files` has
    the number of each row's file there, from 0, and `lines` the line in that file. `line_count` is the number of lines
    the batch consumed, including blank lines and a CSV header, so that line numbers in the file can be computed later
    without a counting pass. A shard of blank lines is one batch without rows. `kept` also has the wanted columns.

    `places` has the place of each row in its file, as a number of bytes or rows that depends on no cut; a source that
    lacks it cannot `take` a share of items without an id. `unread` are rows that a condition cannot judge: one of the
    values it asks for cannot be read. `taken` says of each row whether it is taken, None if all are; a row that is not
    has no result, and its values may be null. Of items that are bytes, `contents` has them, and the text of each is
    their digest; `addresses` has the path of each, if it has one.

    `seen` has a digest of what tells each row's change, if one is asked for: two rows of the same are the same row,
    unchanged. Of those that are `left_out`, None if none is, nothing else was read: text and columns are null.
    """

    texts: pa.StringArray
    kept: pa.RecordBatch
    lines: Sequence[int]
    line_count: int
    bad: dict[int, str] = field(default_factory=dict)
    size_bytes: int = 0
    files: Sequence[int] = ()
    places: Sequence[int] = ()
    unread: frozenset[int] = frozenset()
    taken: NDArray[np.bool_] | None = None
    seen: pa.Array | None = None
    left_out: NDArray[np.bool_] | None = None
    contents: pa.LargeBinaryArray | None = None
    addresses: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def after(self, rows: int) -> ItemBatch:
        """The batch without its first `rows` rows; `line_count` stays the same."""
        return self if rows <= 0 else replace(self.part(rows, len(self)), line_count=self.line_count)

    def cut(self, rows: int) -> Iterator[ItemBatch]:
        """The batch in batches of this many rows; the first has the `line_count`."""
        for start in range(0, max(1, len(self)), rows):
            yield self.part(start, min(len(self), start + rows))

    def part(self, start: int, stop: int) -> ItemBatch:
        """The rows of a range; only the first has the `line_count`."""
        rows, count = slice(start, stop), max(1, len(self))
        return ItemBatch(
            texts=self.texts[rows],
            kept=self.kept.slice(start, max(0, stop - start)),
            lines=self.lines[rows],
            line_count=0 if start else self.line_count,
            bad={row - start: reason for row, reason in self.bad.items() if start <= row < stop},
            size_bytes=self.size_bytes * min(stop, count) // count - self.size_bytes * min(start, count) // count,
            files=self.files[rows],
            places=self.places[rows],
            unread=frozenset(row - start for row in self.unread if start <= row < stop),
            taken=None if self.taken is None else self.taken[rows],
            seen=None if self.seen is None else self.seen[rows],
            left_out=None if self.left_out is None else self.left_out[rows],
            contents=None if self.contents is None else self.contents[rows],
            addresses=self.addresses[rows],
        )


class Reader(Protocol):
    """The functions of a module that reads a format. `stat.format` selects among the formats of one module."""

    def describe(self, stat: SourceStat, fields: Fields) -> dict[str, str]:
        """The types of the id and kept columns, which `stat` lacks so far; refuses fields that the files lack."""

    def open_source(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
        """Open the files, to cut them into shards and read them."""

    def count_rows(self, stat: SourceStat, file: SourceFile) -> int:
        """Count the rows of a file that is not empty; if the format consists of lines, the lines that a run reads."""

    def sample(self, stat: SourceStat) -> pa.Schema | list[Row] | None:
        """A schema, or rows sampled from the whole source, to infer columns from; None if the first rows are enough."""

    def extents(self, stat: SourceStat, shard: Shard, number: int) -> list[Range]:
        """The bytes that a shard needs of the uncompressed file with this number. Optional: without it, all are needed.

        A host without a common disk is sent these. Bytes after them may be read ahead, but are not used.
        """

    def iter_rows(self, stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row | bytes, int]]:
        """Yield whole rows of a file, or their JSON, each with the bytes of content read so far. Not for lines."""


class PlaceReader(Protocol):
    """The functions of a module that reads what addresses with a scheme name, if that is not files of a format.

    What it finds is a `SourceStat` as that of files: `format` is the name of the source, each file has a size that
    shards are cut by, and a tag or edges that change when its content does. Files that are local and have `extents`
    are sent to hosts without a common disk, unless the source declares another `reach`.
    """

    def discover(self, places: Sequence[str], fields: Fields) -> SourceStat:
        """Find what the places name, and the types of the id and kept columns; refuses fields that it lacks."""

    def open_source(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
        """Open it, to cut it into shards and read them."""

    def list_columns(self, places: Sequence[str], query: str) -> dict[str, pa.DataType]:
        """The names and types of all columns."""

    def count_rows(self, stat: SourceStat, file: SourceFile) -> int | None:
        """Count the rows again, for `verify`; None if all of it would have to be read."""

    def extents(self, stat: SourceStat, shard: Shard, number: int) -> list[Range]:
        """The bytes that a shard needs of the file with this number. Optional: without it, all are needed."""


class Source(ABC):
    """An open source. A subclass implements `shards` and `read`.

    `notes` are optional: what a user should know about how the source is cut. They are complete after `shards`.
    """

    notes: Sequence[str] = ()

    @abstractmethod
    def shards(self, target_bytes: int) -> list[Shard]:
        """Cut the whole source into shards of about `target_bytes`, in order."""

    @abstractmethod
    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        """Read the items of one shard, in order; refuses a source that changed since planning."""


__all__ = [
    "ALL",
    "MAX_ITEM_BYTES",
    "Fields",
    "ItemBatch",
    "PlaceReader",
    "Reader",
    "Row",
    "Shard",
    "Source",
    "SourceFile",
    "SourceStat",
]
