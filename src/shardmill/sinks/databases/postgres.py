"""PostgreSQL with pgvector as a store that finished rows are delivered to: `postgresql://…/DATABASE#TABLE`.

`load` has workers write to a table themselves, which updates rows by their key (sinks/postgres.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.arrowtypes import numpy_dtype
from shardmill.core.errors import DatabaseError, UsageError
from shardmill.core.sparse import INDEX, WEIGHT, sparse_dims
from shardmill.postgres.connect import connect, explained
from shardmill.postgres.copy import encode, sent_type
from shardmill.postgres.tables import ensure_vector, lock, lock_table
from shardmill.postgres.types import sql_type
from shardmill.sinks.base import Lot, Shipment
from shardmill.sinks.databases.base import NOTES, DatabaseDelivery
from shardmill.sinks.parquet import is_vector
from shardmill.sinks.predicates import quoted
from shardmill.sinks.remembered import refuse_columns

_READ_ROWS = 2000
_PATIENCE_S = 15.0
_LOT = "shardmill_lot"
_LONGEST_NAME = 63
_CUT_OFF = "SET LOCAL idle_in_transaction_session_timeout = '1min'"
# pgvector builds graphs of up to this many dimensions.
_MOST_INDEXED = {"vector": 2000, "halfvec": 4000}
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class PostgresDelivery(DatabaseDelivery):
    locking = " FOR UPDATE"

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        if (length := len(self.table.encode())) > _LONGEST_NAME:
            raise UsageError(
                f"{address}: the name of the table has {length} bytes, and PostgreSQL cuts it after {_LONGEST_NAME}.",
                hint=f"Choose a name of at most {_LONGEST_NAME} bytes.",
            )

    def connect(self) -> Any:
        return connect(self.path, patience_s=_PATIENCE_S, autocommit=True)

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with explained(self.database):
            cursor = self.database.execute(_marked(sql), list(values))
            return cursor.fetchall() if cursor.description is not None else []

    def library_errors(self) -> tuple[type[Exception], ...]:
        return ()

    def exists(self) -> bool:
        return True

    def has_table(self, name: str) -> bool:
        return self.run("SELECT to_regclass(?)::oid", [quoted(name)])[0][0] is not None

    def prepare(self) -> None:
        with self._alone(lock):
            super().prepare()

    def begin(self) -> None:
        """Lock the notes. Who is paused inside its transaction is cut off by the server, so that another may go on."""
        self.run("BEGIN")
        self.run(_CUT_OFF)
        self.run(f"LOCK TABLE {NOTES} IN EXCLUSIVE MODE")

    def create(self) -> None:
        if any(_vector_type(field.type) or sparse_dims(field) for field in self.shipment.schema):
            with explained(self.database):
                ensure_vector(self.database)
        kinds = {f.name: _column_type(f) for f in self.shipment.schema}
        if self.gone:
            kinds[self.gone] = "timestamp with time zone"
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in kinds.items())
        self.run(f"CREATE TABLE IF NOT EXISTS {quoted(self.table)} ({columns})")
        found = dict(self.run(_COLUMNS, [quoted(self.table)]))
        refuse_columns(self.address, self.shipment, found, kinds)

    def insert(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Copy rows into the table; by way of another one, if a column is of a type that is sent as another."""
        schema = self.shipment.schema
        kinds = [_pgvector_type(field) or sent_type(field.type) for field in schema]
        stored = [_pgvector_type(field) or sql_type(field.type) for field in schema]
        names = [quoted(name) for name in schema.names]
        table = f"{quoted(self.table)} ({', '.join(names)})"
        for batch in batches:
            if kinds == stored:
                self._copy(table, batch, kinds)
                continue
            columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
            self.run(f"CREATE TEMPORARY TABLE {_LOT} ({columns}) ON COMMIT DROP")
            self._copy(f"pg_temp.{_LOT}", batch, kinds)
            chosen = ", ".join(f"{name}::{_column_type(f)}" for name, f in zip(names, schema, strict=True))
            self.run(f"INSERT INTO {table} SELECT {chosen} FROM pg_temp.{_LOT}")
            self.run(f"DROP TABLE pg_temp.{_LOT}")

    def _copy(self, table: str, batch: pa.RecordBatch, kinds: list[str]) -> None:
        command = f"COPY {table} FROM STDIN (FORMAT binary)"
        with explained(self.database), self.database.cursor() as cursor, cursor.copy(command) as copy:
            copy.write(encode(batch.columns, kinds))

    def scan(self) -> Iterator[pa.RecordBatch]:
        self.require_table()
        with explained(self.database), self.database.transaction():
            yield from self.select(self.living(), [])

    def select(self, condition: str, values: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        schema = self.shipment.schema
        columns = ", ".join(f"{quoted(f.name)}{_read_as(f)}" for f in schema)
        asked = f"SELECT {columns} FROM {quoted(self.table)} WHERE {condition}"
        with explained(self.database), self.database.cursor(name="select") as cursor:
            cursor.execute(_marked(asked), list(values))
            while rows := cursor.fetchmany(_READ_ROWS):
                read = zip(*rows, strict=True)
                arrays = [_decode(self.address, each, f) for each, f in zip(read, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def finish(self, lots: Sequence[Lot]) -> list[str]:
        """Build what searches and look-ups need, after the rows: a graph over the vectors, and an index on the key."""
        made = []
        if self.shipment.key:
            self._index("key", ", ".join(map(quoted, self.shipment.key)))
            made.append(f"an index on {', '.join(self.shipment.key)}")
        kind = _vector_type(self.shipment.schema.field(self.shipment.vector).type) if self.shipment.vector else ""
        if kind and self.shipment.dims <= _MOST_INDEXED[kind]:
            self._index("hnsw", f"{quoted(self.shipment.vector)} {kind}_cosine_ops", "USING hnsw")
            made.append(f"an HNSW index on {self.shipment.vector}")
        return made

    def _index(self, what: str, columns: str, using: str = "") -> None:
        name = quoted(f"{self.table}_{what}"[:_LONGEST_NAME])
        with self._alone(lambda connection: lock_table(connection, quoted(self.table))):
            self.run(f"CREATE INDEX IF NOT EXISTS {name} ON {quoted(self.table)} {using} ({columns})")

    @contextmanager
    def _alone(self, lock_it: Callable[[Any], None]) -> Iterator[None]:
        """A transaction in which no other process creates the same: two that try to, IF NOT EXISTS, may both begin."""
        with explained(self.database), self.database.transaction():
            self.run(_CUT_OFF)
            lock_it(self.database)
            yield


def _marked(sql: str) -> str:
    """A command with the marks of psycopg for the values that are sent beside it."""
    return sql.replace("%", "%%").replace("?", "%s")


def _vector_type(kind: pa.DataType) -> str:
    """pgvector's type for vectors; "" if they are of numbers that it would round, or none at all."""
    if not is_vector(kind):
        return ""
    return {pa.float32(): "vector", pa.float16(): "halfvec"}.get(kind.value_type, "")


def _pgvector_type(field: pa.Field) -> str:
    """pgvector's type for dense or sparse vectors; "" for any other column."""
    return f"sparsevec({dims})" if (dims := sparse_dims(field)) else _vector_type(field.type)


def _column_type(field: pa.Field) -> str:
    if name := _vector_type(field.type):
        return f"{name}({field.type.list_size})"
    return _pgvector_type(field) or sql_type(field.type)


def _read_as(field: pa.Field) -> str:
    return "::real[]" if _vector_type(field.type) else "::text" if sparse_dims(field) else ""


def _read_sparse(said: str | None) -> list[dict[str, float]] | None:
    """A sparse vector as pgvector writes it, {1:0.5,7:2}/100, where indices begin with 1."""
    if said is None:
        return None
    pairs = (pair.split(":") for pair in said[1 : said.index("}")].split(",") if pair)
    return [{INDEX: int(index) - 1, WEIGHT: float(weight)} for index, weight in pairs]


def _decode(address: str, values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        if _vector_type(field.type):
            dtype = numpy_dtype(field.type.value_type)
            values = [None if value is None else np.array(value, dtype) for value in values]
        elif sparse_dims(field):
            values = [_read_sparse(value) for value in values]
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DatabaseError(
            f"{address}: the column {field.name} has values that the run did not deliver: {reason}.",
            hint="Deliver the run to another table.",
        ) from error
