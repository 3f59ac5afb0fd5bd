"""The columns of a file as its table has them now: a file may be older than their names and types.

A table that has ids for its columns names them by those in its files, so that columns may be renamed, added and dropped
without a file being written anew. Columns of a file of no table are as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shardmill.core.arrowtypes import arrow_type
from shardmill.core.errors import SourceError
from shardmill.plan import NumberedColumn
from shardmill.sources.arrow.rows import plain_type
from shardmill.sources.base import SourceFile
from shardmill.sources.files import file_name

FIELD_ID = b"PARQUET:field_id"


class FileColumns:
    """The columns of a file, whose own schema is `stored`; `schema` is the one that rows have."""

    def __init__(self, file: SourceFile, stored: pa.Schema) -> None:
        self._file, self._stored = file, stored
        self._columns = {column.name: column for column in file.columns}
        now = pa.schema([pa.field(column.name, arrow_type(column.type)) for column in file.columns])
        self.schema: pa.Schema = now if file.columns else stored
        self._found: dict[str, str | None] = {}

    def stored(self, names: Sequence[str]) -> list[str]:
        """What those of the columns that the file has are called in it."""
        return list(dict.fromkeys(found for name in names if (found := self._find(name)) is not None))

    def are_stored(self, names: Sequence[str]) -> bool:
        """Whether the file has these columns by these names."""
        return all(self._find(name) == name for name in names)

    def shape(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """The columns as the table has them, of a batch that has what the file calls them."""
        if not self._columns:
            return batch
        arrays = []
        for name in names:
            kind, found = self.schema.field(name).type, self._find(name)
            array = pa.nulls(batch.num_rows, kind) if found is None else batch.column(found)
            arrays.append(array if plain_type(array.type) == kind else array.cast(kind))
        if not arrays:
            return batch
        return pa.RecordBatch.from_arrays(arrays, names=list(names))

    def _find(self, name: str) -> str | None:
        """What the column is called in the file; None if it lacks it."""
        if not self._columns or name not in self._columns:
            return name
        if name not in self._found:
            self._found[name] = self._look_for(self._columns[name])
        return self._found[name]

    def _look_for(self, column: NumberedColumn) -> str | None:
        named = all(_id_of(field) is None for field in self._stored)
        if named and not column.names:
            raise self._refuse(column, "is told by no id, since the file has none and its table names none")
        for field in self._stored:
            if field.name in column.names if named else _id_of(field) == column.id:
                kind = self.schema.field(column.name).type
                if not _fits(field.type, kind, named):
                    raise self._refuse(column, f"was {field.type} when it was written and is {kind} now")
                return str(field.name)
        if column.constant:
            raise self._refuse(column, "is not in it, but in the metadata of its table, which is not read")
        return None

    def _refuse(self, column: NumberedColumn, why: str) -> SourceError:
        return SourceError(
            f"{file_name(self._file.place)}: the column {column.name!r} {why}.",
            hint="Write the data files of the table anew: CALL system.rewrite_data_files(…)",
        )


def _id_of(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)


def _fits(stored: pa.DataType, now: pa.DataType, named: bool) -> bool:
    """Whether values of a type in a file can be read as the type that the table has now, without a doubt."""
    stored = plain_type(stored)
    if pa.types.is_nested(now):
        if not pa.types.is_nested(stored) or named or stored.num_fields != now.num_fields:
            return False
        return all(_same_field(stored.field(i), now.field(i), now) for i in range(now.num_fields))
    if pa.types.is_decimal(stored) and pa.types.is_decimal(now):
        return bool(stored.scale == now.scale and stored.precision <= now.precision)
    wider = {pa.int32(): pa.int64(), pa.float32(): pa.float64(), pa.large_binary(): pa.binary()}
    return bool(stored == now or wider.get(stored) == now)


def _same_field(stored: pa.Field, now: pa.Field, inside: pa.DataType) -> bool:
    """Whether a field inside a column is still what it was; elements, keys and values cannot be others."""
    if pa.types.is_struct(inside) and (stored.name, _id_of(stored)) != (now.name, _id_of(now)):
        return False
    return _fits(stored.type, now.type, named=False)
