"""SQLite as a sink: vectors are blobs of float32, as sqlite-vec reads them; other lists and structures are JSON."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.arrowtypes import numpy_dtype
from shardmill.core.errors import DatabaseError
from shardmill.sinks.base import Lot
from shardmill.sinks.databases.base import DatabaseDelivery
from shardmill.sinks.parquet import is_vector, vectors
from shardmill.sinks.predicates import quoted
from shardmill.sinks.remembered import refuse_columns

SCHEME = "sqlite:"
_READ_ROWS = 2000
_PATIENCE_S = 60.0


class SqliteDelivery(DatabaseDelivery):
    scheme = SCHEME

    def connect(self) -> Any:
        try:
            database = sqlite3.connect(self.path, isolation_level=None, timeout=_PATIENCE_S, check_same_thread=False)
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA schema_version").fetchone()
        except sqlite3.Error as error:
            raise DatabaseError(
                f"{self.path} cannot be used as an SQLite database: {error}.",
                hint="Name a file that may be written, in a folder that exists.",
            ) from error
        return database

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def has_table(self, name: str) -> bool:
        return bool(self.run("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", [name]))

    def create(self) -> None:
        schema = self.shipment.schema
        if self.gone:
            schema = schema.append(pa.field(self.gone, pa.string()))
        columns = ", ".join(f"{quoted(f.name)} {_sql_type(f.type)}" for f in schema)
        self.run(f"CREATE TABLE IF NOT EXISTS {quoted(self.table)} ({columns})")
        said = self.run(f"PRAGMA table_info({quoted(self.table)})")
        found = pa.schema([(row[1], _arrow_type(row[2])) for row in said])
        wanted = pa.schema([(f.name, _arrow_type(_sql_type(f.type))) for f in schema])
        refuse_columns(self.address, self.shipment, found, wanted)

    def insert(self, batches: Iterator[pa.RecordBatch]) -> None:
        names = ", ".join(map(quoted, self.shipment.schema.names))
        table, marks = f"{quoted(self.table)} ({names})", ", ".join("?" * len(self.shipment.schema))
        for batch in batches:
            values = zip(*map(self.as_values, batch.columns), strict=True)
            self.database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)

    def as_values(self, column: pa.Array) -> list[Any]:
        return _encode(column)

    def scan(self) -> Iterator[pa.RecordBatch]:
        self.require_table()
        with self.told():
            yield from self.select(f"{self.living()} ORDER BY rowid", [])

    def select(self, condition: str, values: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        schema = self.shipment.schema
        columns = ", ".join(map(quoted, schema.names))
        found = self.database.execute(f"SELECT {columns} FROM {quoted(self.table)} WHERE {condition}", list(values))
        while rows := found.fetchmany(_READ_ROWS):
            read = zip(*rows, strict=True)
            arrays = [_decode(each, field.type) for each, field in zip(read, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def finish(self, lots: Sequence[Lot]) -> list[str]:
        if not self.shipment.key:
            return []
        name = f"{self.table}_by_{'_'.join(self.shipment.key)}"
        columns = ", ".join(map(quoted, self.shipment.key))
        with self.told():
            self.run(f"CREATE INDEX IF NOT EXISTS {quoted(name)} ON {quoted(self.table)} ({columns})")
        return [f"an index on {', '.join(self.shipment.key)}"]

    def library_errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)


_SAID = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string(), "BLOB": pa.binary()}
# SQLite keeps what is said of a type, and a name that has BLOB in it is one.
_VECTOR = re.compile(r"BLOB\((\d+)\)")


def _arrow_type(said: str) -> pa.DataType:
    """What a column holds, by its declaration."""
    if found := _VECTOR.fullmatch(said):
        return pa.list_(pa.float32(), int(found[1]))
    return _SAID.get(said, pa.null())


def _sql_type(kind: pa.DataType) -> str:
    if (pa.types.is_integer(kind) and kind != pa.uint64()) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    if _is_short_vector(kind):
        return f"BLOB({kind.list_size})"
    return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_bytes(kind) else "TEXT"


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(kind))


def _is_short_vector(kind: pa.DataType) -> bool:
    return is_vector(kind) and kind.value_type != pa.float64()


def _encode(column: pa.Array) -> list[Any]:
    kind = column.type
    if _is_short_vector(kind):
        rows = vectors(column).astype("<f4", copy=False)
        return [
            row.tobytes() if there else None for row, there in zip(rows, column.is_valid().to_pylist(), strict=True)
        ]
    if pa.types.is_nested(kind):
        return [None if value is None else json.dumps(value, ensure_ascii=False) for value in column.to_pylist()]
    if _sql_type(kind) == "TEXT" and not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return values


def _decode(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if _is_short_vector(kind):
        dims = kind.list_size
        rows = [np.zeros(dims, "<f4") if value is None else np.frombuffer(value, "<f4") for value in values]
        if any(len(row) != dims for row in rows):
            raise DatabaseError(f"A vector there has not {dims} dimensions.", hint="Deliver the run again.")
        flat = pa.array(np.concatenate(rows).astype(numpy_dtype(kind.value_type)))
        missing = pa.array([value is None for value in values])
        return pa.FixedSizeListArray.from_arrays(flat, type=kind, mask=missing)
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else json.loads(value) for value in values], kind)
    if pa.types.is_boolean(kind):
        return pa.array([None if value is None else bool(value) for value in values], kind)
    if _sql_type(kind) == "TEXT" and not pa.types.is_string(kind):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)
