"""The rows and columns of a result that are written: those for which a condition holds, renamed if asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import IO, Any

import pyarrow as pa

from shardmill.core.console import Bar
from shardmill.core.errors import ShardmillError, UsageError, nearest
from shardmill.core.where.condition import Condition, columns_of
from shardmill.core.where.evaluation import check_types, holds
from shardmill.core.where.parsing import parse_condition
from shardmill.plan import ROW
from shardmill.store import locate

Write = Callable[[pa.RecordBatch], None]
OpenRows = Callable[[IO[bytes], pa.Schema], AbstractContextManager[Write]]


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge wrote; of an index, also its kind and recall."""

    files: tuple[str, ...]
    rows: int
    bytes: int
    index: dict[str, Any] | None = None

    @classmethod
    def of(cls, files: tuple[str, ...], rows: int, index: dict[str, Any] | None = None) -> Merged:
        """Files that are written, with their sizes."""
        found = [store.head(key) for store, key in map(locate, files)]
        return cls(files, rows, sum(entry.size for entry in found if entry is not None), index)


@dataclass(frozen=True, slots=True)
class Result:
    """A result that can be read: its columns, its number of rows, and its batches, each with `row` first.

    `kept` are the columns that come from the source.
    """

    schema: pa.Schema
    rows: int
    kept: Sequence[str]
    read: Callable[[list[str]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is written of a result: `columns` by their names in the result, `schema` as they are written."""

    result: Result
    columns: tuple[str, ...]
    schema: pa.Schema
    condition: Condition | None = None

    def name_of(self, column: str) -> str:
        """The name that a column of the result is written with."""
        return str(self.schema.names[self.columns.index(column)])

    def only(self, columns: Sequence[str]) -> Chosen:
        """The same rows with some of their columns."""
        fields = [self.schema.field(self.columns.index(name)) for name in columns]
        return replace(self, columns=tuple(columns), schema=pa.schema(fields))

    def count(self) -> int:
        """The number of rows; with a condition, they are counted by reading the columns that it names."""
        if self.condition is None:
            return self.result.rows
        numbers = replace(self, columns=(ROW,), schema=pa.schema([pa.field(ROW, pa.int64())]))
        return sum(batch.num_rows for batch in numbers.read("counting rows", quiet=True))

    def read(self, label: str, *, quiet: bool) -> Iterator[pa.RecordBatch]:
        """The rows in source order, as they are written. The bar shows the rows that were read."""
        needed = () if self.condition is None else columns_of(self.condition)
        stored = [name for name in dict.fromkeys((*self.columns, *needed)) if name != ROW]
        done = 0
        with Bar(label, quiet=quiet) as bar:
            for batch in self.result.read(stored):
                done += batch.num_rows
                if self.condition is not None:
                    batch = batch.filter(holds(self.condition, batch))
                if batch.num_rows:
                    columns = [batch.column(name) for name in self.columns]
                    yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
                bar.count(done, self.result.rows, "rows")
        if done != self.result.rows:
            raise ShardmillError(
                f"The parts have {done:,} rows, but their commits say {self.result.rows:,}.",
                hint="Check every part: shardmill verify RUN",
            )


def choose(
    result: Result, *, where: str = "", columns: Sequence[str] = (), rename: Mapping[str, str] | None = None
) -> Chosen:
    """Choose rows and columns, or say what is wrong. `row` is always the first column."""
    schema = pa.schema([pa.field(ROW, pa.int64()), *result.schema])
    chosen = tuple(dict.fromkeys((ROW, *(columns or schema.names))))
    for name in chosen:
        _check_known(name, schema.names, "--columns")
    for name in rename or {}:
        check_written(name, chosen, "--rename")
    named = [(rename or {}).get(name, name) for name in chosen]
    for old, new in (rename or {}).items():
        if not new:
            raise UsageError(f"--rename gives {old!r} no name.", hint="For example: --rename id=key")
        if named.count(new) > 1:
            raise UsageError(
                f"--rename {old}={new}: there would be two columns named {new!r}.",
                hint="Choose another name, or leave a column out with --columns.",
            )
    fields = [schema.field(name).with_name(new) for name, new in zip(chosen, named, strict=True)]
    return Chosen(result, chosen, pa.schema(fields), _read_condition(where, schema))


def check_written(name: str, written: Sequence[str], option: str) -> None:
    if name not in written:
        raise UsageError(f"{option}: no column {name!r} is written.", hint=nearest(name, [*written]))


def _check_known(name: str, names: Sequence[str], option: str) -> None:
    if name not in names:
        raise UsageError(f"{option}: the result has no column {name!r}.", hint=nearest(name, [*names]))


def _read_condition(where: str, schema: pa.Schema) -> Condition | None:
    if not where:
        return None
    try:
        condition = parse_condition(where)
    except ValueError as error:
        raise UsageError(f"--where: {error}.", hint="For example: --where 'overall <= 2'") from error
    for name in columns_of(condition):
        _check_known(name, schema.names, "--where")
    check_types(condition, schema)
    return condition
