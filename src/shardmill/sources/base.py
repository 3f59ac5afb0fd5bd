"""The contract of a source: what is there, how it is cut, and how one shard is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardmill.plan import Shard, SourceFile, SourceStat

if TYPE_CHECKING:
    import pyarrow as pa

    from shardmill.spec import Work

MAX_ITEM_BYTES = 32 << 20

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a row are read: a text (a field, several, or a template), the id, and columns to keep.

    `keep` entries may name a type: `price:float64`. Of a database, `query` gives the rows.
    """

    text: str
    id: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    query: str = ""

    @classmethod
    def of(cls, work: Work) -> Fields:
        return cls(work.text, work.id, work.keep, work.query)


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """Consecutive items of one shard: every item is a row, those that cannot be used too.

    `bad` says why a row has no usable text; its text is null then. `lines` gives each row's line number in the shard,
    from 1 (its row number where a format has no lines); `line_count` is how many lines the batch used up, blank ones
    and a CSV header included, so that line numbers in the file can be given later without a counting pass. A shard of
    blank lines is one batch without rows.
    """

    texts: pa.StringArray
    kept: pa.RecordBatch
    lines: Sequence[int]
    line_count: int
    bad: dict[int, str] = field(default_factory=dict)
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    def after(self, rows: int) -> ItemBatch:
        """What is left of the batch without its first rows; all its lines still count."""
        if rows <= 0:
            return self
        return ItemBatch(
            texts=self.texts.slice(rows),
            kept=self.kept.slice(rows),
            lines=self.lines[rows:],
            line_count=self.line_count,
            bad={row - rows: reason for row, reason in self.bad.items() if row >= rows},
            size_bytes=self.size_bytes * max(0, len(self) - rows) // max(1, len(self)),
        )


class Source(ABC):
    """A source that is open. A subclass owes `shards` and `read`.

    `notes` are optional: what a user should know of how the source is cut, complete once `shards` returned.
    """

    notes: Sequence[str] = ()

    @abstractmethod
    def shards(self, target_bytes: int) -> list[Shard]:
        """The whole source in pieces of about `target_bytes`, in order."""

    @abstractmethod
    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        """The items of one shard, in order; refuses a source that is no longer the planned one."""


__all__ = ["MAX_ITEM_BYTES", "Fields", "ItemBatch", "Row", "Shard", "Source", "SourceFile", "SourceStat"]
