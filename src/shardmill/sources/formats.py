"""The table of supported file formats.

A new format is one entry here and one module that implements `Reader`. The module is imported when a source of its
format is used, and never imports this table.
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
    """The functions of a module that reads a format. `stat.format` selects among the formats of one module."""

    def describe(self, stat: SourceStat, fields: Fields) -> dict[str, str]:
        """The types of the id and kept columns, which `stat` lacks so far; refuses fields that the files lack."""

    def open_source(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> Source:
        """Open the files, to cut them into shards and read them."""

    def count_rows(self, stat: SourceStat, file: SourceFile) -> int:
        """Count the rows of a file that is not empty; if the format consists of lines, the lines that a run reads."""

    def sample(self, stat: SourceStat) -> pa.Schema | list[Row] | None:
        """A schema, or rows sampled from the whole source, to infer columns from; None if the first rows are enough."""

    def iter_rows(self, stat: SourceStat, file: SourceFile) -> Iterator[tuple[Row | bytes, int]]:
        """Yield whole rows of a file, or their JSON, each with the bytes of content read so far. Not for lines."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its suffixes, the module that reads it, and its properties.

    An item of unit `line` is one line, of unit `record` one or more lines; a `row` is independent of lines.
    `compressible` files may be compressed with gzip, zstd, bzip2 or xz. `counted_remotely`: rows can be counted without
    downloading the whole file. Messages call a file that begins with `magic` by its `title`.
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

# Kinds of folders that --format accepts, and the format of their files.
FOLDERS = {"datasets": "arrow"}

_BY_NAME = {format.name: format for format in FORMATS}
NAMES = [*_BY_NAME, *FOLDERS]


def _by_suffix() -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for format in FORMATS:
        for suffix in format.suffixes:
            found[suffix] = (*found.get(suffix, ()), format.name)
    return found


# Suffixes and their possible formats; if there are several, the content decides.
SUFFIXES = _by_suffix()


def find_format(name: str) -> Format:
    """The format of a source that was discovered."""
    if name not in _BY_NAME:
        raise SourceError(f"{name!r} is not a supported format.", hint="Plan the run again with --fresh.")
    return _BY_NAME[name]


def is_in_lines(name: str) -> bool:
    """Whether this source format, which may also be a database or range, consists of lines of text."""
    return name in _BY_NAME and _BY_NAME[name].unit != "row"
