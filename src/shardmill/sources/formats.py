"""The one table of the file formats that are read.

A new format is one entry here and one module that keeps the contract of `Reader`. A module is imported when a source of
its format is used, and never imports this table.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast

from shardmill.errors import SourceError
from shardmill.sources.base import Fields, Row, Source, SourceFile, SourceStat

if TYPE_CHECKING:
    import pyarrow as pa


class Reader(Protocol):
    """What a module that reads a format offers. `stat.format` tells the formats of one module apart."""

    def describe(self, stat: SourceStat, fields: Fields) -> dict[str, str]:
        """The types of the id and kept columns, which `stat` has not yet; refuses fields that the files lack."""

    def open_source(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
        """The files, ready to be cut into shards and read."""

    def count_rows(self, file: SourceFile) -> int:
        """The rows of a file that is not empty; its lines where the format is in lines."""

    def sample(self, stat: SourceStat) -> pa.Schema | list[Row] | None:
        """What tells the columns of whole rows: a schema, or rows from all over; None where the first rows do."""

    def iter_rows(self, stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row | bytes, int]]:
        """Whole rows of a file, or their JSON, each with the bytes of content read so far. Not needed for lines."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the suffixes of its files, the module that reads it, and what is special about it.

    Items of unit `line` are one line each, those of unit `record` one or more lines; a `row` has nothing to do with
    lines. `compressible` files may have gzip and the like around them. `counted_remotely` are files whose rows can be
    counted without fetching all of them. A file that begins with `magic` is `title` to people.
    """

    name: str
    suffixes: tuple[str, ...]
    module: str
    unit: Literal["line", "record", "row"] = "row"
    compressible: bool = False
    counted_remotely: bool = False
    magic: bytes = b""
    title: str = ""

    def reader(self) -> Reader:
        return cast(Reader, importlib.import_module(f"shardmill.sources.{self.module}"))


FORMATS = (
    Format("jsonl", (".jsonl", ".ndjson", ".json"), "lines", unit="line", compressible=True),
    Format("text", (".txt", ".text"), "lines", unit="line", compressible=True),
    Format("csv", (".csv",), "csv.source", unit="record", compressible=True),
    Format("tsv", (".tsv",), "csv.source", unit="record", compressible=True),
    Format("parquet", (".parquet", ".pq"), "parquet", counted_remotely=True, magic=b"PAR1", title="Parquet"),
    Format(
        "arrow",
        (".arrow", ".arrows", ".feather"),
        "arrow.source",
        counted_remotely=True,
        magic=b"ARROW1",
        title="an Arrow file",
    ),
    Format("json", (".json",), "json.array", compressible=True),
    Format("pickle", (".pkl", ".pickle"), "pickle.source"),
)

# Folders that are asked for like a format, and the format of the files in them.
FOLDERS = {"datasets": "arrow"}

_BY_NAME = {format.name: format for format in FORMATS}
NAMES = [*_BY_NAME, *FOLDERS]


def _by_suffix() -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for format in FORMATS:
        for suffix in format.suffixes:
            found[suffix] = (*found.get(suffix, ()), format.name)
    return found


# Suffixes, and the formats that a file named so may have: of several, its content tells.
SUFFIXES = _by_suffix()


def find_format(name: str) -> Format:
    """The format of a source that was discovered."""
    if name not in _BY_NAME:
        raise SourceError(f"{name!r} is not a format that is read.", hint="Plan the run again with --fresh.")
    return _BY_NAME[name]


def is_in_lines(name: str) -> bool:
    """Whether a source of this name, which may be no format of files at all, is lines of text."""
    return name in _BY_NAME and _BY_NAME[name].unit != "row"
