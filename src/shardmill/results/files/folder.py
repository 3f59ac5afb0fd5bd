"""A result as a folder of files: numbered, in source order, or one or more per value of a column, as Hive has them."""

from __future__ import annotations

import bisect
import datetime
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from shardmill.core.console import Bar
from shardmill.core.errors import UsageError
from shardmill.core.where.evaluation import BOOLEAN, DATE, TEXT, kind_of
from shardmill.results.files.chosen import Chosen, Merged, OpenRows, check_written
from shardmill.sources.origin import NULL_VALUE
from shardmill.sources.sorting import ExternalSort
from shardmill.store import Store, replacing
from shardmill.store.folders import filling

Batches = Iterator[pa.RecordBatch]


def write_folder(
    chosen: Chosen,
    out: str,
    open_rows: OpenRows,
    suffix: str,
    rows_per_file: int | None,
    partition_by: str,
    *,
    quiet: bool,
) -> Merged:
    """Write files named `part-000000.csv`, or `COLUMN=VALUE/part-0.csv`, in which that column is left out."""
    if partition_by:
        check_partition(chosen, partition_by)
    digits = 6 if rows_per_file else 1
    with filling(out) as store:
        if partition_by:
            rest = chosen.only([name for name in chosen.columns if name != partition_by])
            files = _Files(store, open_rows, rest.schema, suffix, digits, rows_per_file)
            for folder, batches in _partitions(chosen, partition_by, rest.schema, quiet):
                files.write(folder, batches)
        else:
            files = _Files(store, open_rows, chosen.schema, suffix, digits, rows_per_file)
            files.write("", chosen.read("merging", quiet=quiet))
        written = {*files.keys}
        size = sum(entry.size for entry in store.list() if entry.key in written)
    return Merged(tuple(f"{out}/{key}" for key in files.keys), files.rows, size)


def check_partition(chosen: Chosen, column: str) -> None:
    """Refuse a column whose values are no names of folders."""
    check_written(column, chosen.columns, "--partition-by")
    field = chosen.schema.field(chosen.columns.index(column))
    name, kind = field.name, field.type
    if kind_of(kind) not in (TEXT, BOOLEAN, DATE) and not pa.types.is_integer(kind):
        raise UsageError(
            f"--partition-by: {column!r} holds {kind}, whose values are no names of folders.",
            hint="Choose a column of texts, whole numbers, dates or booleans.",
        )
    if "/" in name or "=" in name:
        raise UsageError(
            f"--partition-by: {name!r} has a character that divides folders.", hint="Give it a name with --rename."
        )


class _Files:
    """Writes batches into files of a number of rows, one after another."""

    def __init__(
        self, store: Store, open_rows: OpenRows, schema: pa.Schema, suffix: str, digits: int, most: int | None
    ) -> None:
        self._store, self._open_rows, self._schema = store, open_rows, schema
        self._suffix, self._digits, self._most = suffix, digits, most or sys.maxsize
        self.keys: list[str] = []
        self.rows = 0

    def write(self, folder: str, batches: Batches) -> None:
        """Write the files of a folder; without rows it is one file that has none."""
        rest = next(batches, None)
        for number in itertools.count():
            key = f"{folder}part-{number:0{self._digits}d}{self._suffix}"
            with replacing(key, self._store) as file, self._open_rows(file, self._schema) as write:
                left = self._most
                while rest is not None and left:
                    piece = rest.slice(0, left)
                    write(piece)
                    left -= piece.num_rows
                    self.rows += piece.num_rows
                    rest = rest.slice(piece.num_rows) if piece.num_rows < rest.num_rows else next(batches, None)
            self.keys.append(key)
            if rest is None:
                return


def _partitions(chosen: Chosen, column: str, schema: pa.Schema, quiet: bool) -> Iterator[tuple[str, Batches]]:
    """The folder of each value, and its rows without that value, in source order, with the columns of `schema`.

    Rows are sorted by value first, on disk if they are many, so that one file is open at a time.
    """
    # The sort adds a column of its own, whose name the result may have, too.
    numbered = [str(number) for number in range(len(chosen.columns))]
    key = numbered[chosen.columns.index(column)]
    others = [number for number in numbered if number != key]
    with ExternalSort(key) as rows:
        total = 0
        for batch in chosen.read("sorting", quiet=quiet):
            rows.add(batch.rename_columns(numbered))
            total += batch.num_rows
        drained = _shown(rows.drain(), total, quiet)
        for value, group in itertools.groupby(_equal_pieces(drained, key), key=lambda piece: piece[0]):
            pieces = ([piece.column(number) for number in others] for _, piece in group)
            batches = (pa.RecordBatch.from_arrays(columns, schema=schema) for columns in pieces)
            yield f"{chosen.name_of(column)}={_folder_name(value)}/", batches


def _shown(batches: Batches, total: int, quiet: bool) -> Batches:
    done = 0
    with Bar("writing", quiet=quiet) as bar:
        for batch in batches:
            yield batch
            done += batch.num_rows
            bar.count(done, total, "rows")


def _equal_pieces(batches: Iterable[pa.RecordBatch], key: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Slices of sorted batches whose rows have one value."""
    for batch in batches:
        values, start = batch.column(key), 0
        while start < len(values):
            value = values[start].as_py()
            stop = bisect.bisect_right(values, _order(value), lo=start, key=lambda each: _order(each.as_py()))
            yield value, batch.slice(start, stop - start)
            start = stop


def _order(value: Any) -> tuple[bool, Any]:
    """Null is last."""
    return value is None, 0 if value is None else value


def _folder_name(value: Any) -> str:
    """A value as Hive and Arrow write it."""
    if value is None:
        return NULL_VALUE
    if isinstance(value, bool):
        return str(value).lower()
    return quote(value.isoformat() if isinstance(value, datetime.date) else str(value), safe="")
