"""A source as a plan has it: its files, and the shards that they are cut into."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any, NamedTuple

# Begins the name of a run that is a source, and what identifies the content of its parts.
RUN = "run:"

# The folder of data in memory, and of bytes of pipes, that a run reads and keeps; each file is named by its digest.
SPILLED = "spilled/"
_SPILLED_NAME = re.compile(r"spilled/(memory|pipe)-[0-9a-f]{16}\.[a-z0-9]+")
_SPILLED_WORDS = {"memory": "data in memory", "pipe": "a pipe"}

# The end of a stream is unknown before it is read; this is beyond any.
STREAM_END = 1 << 62
_FILE_FIELDS = ("place", "size_bytes", "tag", "edges")

# A value of the column that a query is cut by; None for an open end of a range.
KeyValue = int | float | str | None


class NumberedColumn(NamedTuple):
    """A column of a table: its name and type now, and the id that names it in files, or `names` in those without ids.

    Where a file lacks it, its values are null or, if it is `constant`, in the metadata of the table.
    """

    name: str
    id: int
    type: str
    names: tuple[str, ...] = ()
    constant: bool = False


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file and what identifies its content: size, the store's own tag, a digest of both edges.

    A compressed file also has its unpacked size, and `entries`: seek points, each a position in the file and one in its
    content, where decompression may start. Without entries it is read as a stream, and its size is an estimate. If
    seeking needs more than a position, `index` names the object that holds it. `origin` is the place where it was
    found, if rows tell where they came from. If an item is a whole file, `path` is where it is in the folder that was
    named. A file of a table that has ids for its columns has those of the table that are read. A local file is
    `settled` if it had not changed for a while: then this is its number on the disk, and when it last changed. Of a
    query whose rows tell when they changed, `newest` is the last of these values when it was planned, as JSON.
    """

    place: str
    size_bytes: int
    tag: str
    edges: str
    compression: str = ""
    unpacked_bytes: int = 0
    entries: tuple[tuple[int, int], ...] = ()
    index: str = ""
    origin: str = ""
    path: str = ""
    columns: tuple[NumberedColumn, ...] = ()
    settled: str = ""
    newest: str = ""

    @property
    def identity(self) -> list[Any]:
        """What identifies it in the id of a plan."""
        # Parts of a run are named by attempts; what identifies their content is in their edges.
        known = ["" if self.run else self.name, self.size_bytes, self.tag, self.edges]
        return [*known, self.columns] if self.columns else known

    @property
    def name(self) -> str:
        """The path of the file in its folder, if items are files; else its name, or that of the database in a URL."""
        if self.path:
            return self.path
        is_database = self.place.startswith(("postgres://", "postgresql://", "mysql://", "mariadb://"))
        return PurePosixPath(self.place.partition("?")[0] if is_database else self.place).name

    @property
    def run(self) -> str:
        """The id of the plan that made it, if it is a part of a run; else empty."""
        return self.edges.split(":")[1] if self.edges.startswith(RUN) else ""

    @property
    def streamed(self) -> bool:
        return bool(self.compression) and not self.entries

    @property
    def content_bytes(self) -> int:
        """The unpacked size; an estimate for a stream, else exact."""
        return self.unpacked_bytes if self.compression else self.size_bytes

    @property
    def end(self) -> int:
        """An upper bound of where the content ends."""
        return STREAM_END if self.streamed else self.content_bytes

    def to_json(self) -> dict[str, Any]:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if value or name in _FILE_FIELDS}


@dataclass(frozen=True, slots=True)
class SourceStat:
    """What planning needs to know about a source, found by reading only the edges of its files.

    `columns` has the Arrow type of every id and kept column, fixed for the whole run. `origin` names the columns that
    tell where a row came from, beside those of the data.
    """

    format: str
    files: tuple[SourceFile, ...]
    columns: dict[str, str]
    origin: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(f.content_bytes for f in self.files)

    def to_json(self) -> dict[str, Any]:
        known = {"format": self.format, "files": [f.to_json() for f in self.files], "columns": self.columns}
        return {**known, "origin": list(self.origin)} if self.origin else known


@dataclass(frozen=True, slots=True)
class Shard:
    """A piece of one file, or several whole small files, that one worker commits as a whole.

    [start, stop) are bytes of the unpacked content in line files, CSV and JSON arrays, row groups in Parquet, rows in
    Arrow and pickles; `weight_bytes` is its share of the work. A piece of a query covers the keys above `low` up to and
    including `high`; its [start, stop) are row numbers at planning time. With several `files`, the shard has those
    that follow `file`, each from its start to its end. `before` is the number of lines of the file before the piece,
    if rows tell their line. The last shard of a limit ends with the item that is the `most` of those it takes.
    """

    index: int
    file: int
    start: int
    stop: int
    weight_bytes: int
    low: KeyValue = None
    high: KeyValue = None
    files: int = 1
    before: int = 0
    most: int = 0


class ShardRows(Sequence[Shard]):
    """The shards of a plan that was read, as its rows: each is made when it is asked for, since there may be many.

    More may be added to a plan later: all who hold it see them.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: list[Sequence[Any]]) -> None:
        if not all(4 <= len(row) <= 9 for row in rows):
            raise ValueError("a row of another length")
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        at = range(len(self._rows))[index]
        return tuple(map(self.__getitem__, at)) if isinstance(at, range) else Shard(at, *self._rows[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def grow(self, later: ShardRows) -> None:
        """Add the shards that a later version of the plan has."""
        self._rows.extend(later._rows[len(self._rows) :])

    def weights(self) -> list[int]:
        return [row[3] for row in self._rows]

    def are_pieces(self, files: int) -> bool:
        """Whether each shard is a piece of the files; by columns, which is fast."""
        several = [row[6] if len(row) > 6 else 1 for row in self._rows]
        before, most = ([row[i] for row in self._rows if len(row) > i] for i in (7, 8))
        columns = [*([row[i] for row in self._rows] for i in range(4)), several, before, most]
        plain = ({*map(type, c)} <= {int} and 0 <= min(c, default=0) <= max(c, default=0) <= 1 << 64 for c in columns)
        if not (all(plain) and all(several) and all(map(operator.le, *columns[1:3]))):
            return False
        return max(map(operator.add, columns[0], several), default=0) <= files


def shard_row(shard: Shard) -> list[Any]:
    row = [shard.file, shard.start, shard.stop, shard.weight_bytes]
    if shard.most or shard.before:
        return [*row, shard.low, shard.high, shard.files, shard.before, *([shard.most] if shard.most else [])]
    if shard.files > 1:
        return [*row, None, None, shard.files]
    return row if shard.low is shard.high is None else [*row, shard.low, shard.high]


def is_spilled(key: str) -> bool:
    """Whether a key of a run folder is that of data that the run spilled there."""
    return _SPILLED_NAME.fullmatch(key) is not None


def name_place(place: str) -> str:
    """A place of a source, as it is shown: what was spilled into the run folder, in words.

    >>> name_place("/runs/mine/spilled/pipe-00c0ffee00c0ffee.jsonl")
    'a pipe, kept as spilled/pipe-00c0ffee00c0ffee.jsonl'
    """
    key = "/".join(place.rsplit("/", 2)[-2:])
    found = _SPILLED_NAME.fullmatch(key)
    return place if found is None else f"{_SPILLED_WORDS[found[1]]}, kept as {key}"
