"""Rows into a table: a binary COPY into a temporary one, and one INSERT from there, in the order of the key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardmill.errors import DatabaseError
from shardmill.postgres.connect import load
from shardmill.postgres.copy import digest_rows, encode, sent_type
from shardmill.postgres.tables import DIGEST
from shardmill.postgres.target import Conflict, Target, quoted

if TYPE_CHECKING:
    import psycopg

_BATCH = "shardmill_batch"
_TYPES = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""


class Upsert:
    """How rows of one shape are written into one table, whose own column types they are turned into."""

    def __init__(self, connection: psycopg.Connection[Any], target: Target, schema: pa.Schema, mode: Conflict) -> None:
        types: dict[str, str] = dict(connection.execute(_TYPES, [target.name]).fetchall())
        missing = [name for name in schema.names if name not in types]
        if missing:
            raise DatabaseError(f"{target.name} has no column {missing[0]!r}.", hint="Load into another table.")
        self.target, self.mode = target, mode
        self._names = schema.names
        self._kinds = [self._sent_as(field) for field in schema]
        self._types = types
        self._create, self._copy, self._insert = self._statements(types)

    def _sent_as(self, field: pa.Field) -> str:
        return self.target.vector_type if field.name == self.target.vector else sent_type(field.type)

    def _statements(self, types: dict[str, str]) -> tuple[bytes, bytes, bytes]:
        vector = self.target.vector
        columns = [
            f"{quoted(name)} {types[name] if name == vector else kind}"
            for name, kind in zip(self._names, self._kinds, strict=True)
        ]
        names = ", ".join(map(quoted, self._names))
        # A vector of 384 numbers is over what a row may have before it is stored elsewhere: not here, for so short.
        create = (
            f"CREATE TEMPORARY TABLE {_BATCH} ({', '.join(columns)}) WITH (toast_tuple_target = 8160) ON COMMIT DROP"
        )
        copy = f"COPY pg_temp.{_BATCH} ({names}) FROM STDIN (FORMAT binary)"
        values = [
            _converted(name, kind, types[name], name == vector)
            for name, kind in zip(self._names, self._kinds, strict=True)
        ]
        key = ", ".join(map(quoted, self.target.key))
        insert = (
            f"WITH written AS (INSERT INTO {self.target.name} AS old ({names})"
            f" SELECT {', '.join(values)} FROM pg_temp.{_BATCH} ORDER BY {key}"
            f" {self._on_conflict(key)} RETURNING xmax::text = '0' AS new, old.{quoted(vector)} IS NULL AS hollow)"
            " SELECT count(*) FILTER (WHERE new), count(*) FILTER (WHERE NOT new), count(*) FILTER (WHERE hollow)"
            " FROM written"
        )
        return create.encode(), copy.encode(), insert.encode()

    def _on_conflict(self, key: str) -> str:
        """A row without a vector is of a text that did not change: the vector that is there stays, and its digest."""
        if self.mode == "fail":
            return ""
        if self.mode == "skip":
            return f"ON CONFLICT ({key}) DO NOTHING"
        vector = quoted(self.target.vector)
        changes = [f"{quoted(n)} = EXCLUDED.{quoted(n)}" for n in self._names if n not in self.target.key]
        kept = f"CASE WHEN EXCLUDED.{vector} IS NULL THEN old.{{0}} ELSE EXCLUDED.{{0}} END"
        for name in (self.target.vector, DIGEST):
            old = f"{quoted(name)} = EXCLUDED.{quoted(name)}"
            changes[changes.index(old)] = f"{quoted(name)} = {kept.format(quoted(name))}"
        return f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(changes)}"

    def encode(self, rows: pa.Table) -> bytes:
        """What COPY is sent for these rows."""
        return encode([rows.column(n).combine_chunks() for n in self._names], self._kinds)

    def unchanged(self, connection: psycopg.Connection[Any], kept: pa.RecordBatch) -> frozenset[int]:
        """The rows that the table has with the same text digest, and with a vector."""
        key = self.target.key
        names = ", ".join(f"k{i}" for i in range(len(key)))
        arrays = ", ".join(f"%s::{self._types[name]}[]" for name in key)
        same = " AND ".join(f"old.{quoted(name)} = sent.k{i}" for i, name in enumerate(key))
        found = connection.execute(
            f"SELECT sent.row - 1 FROM unnest({arrays}, %s::bytea[]) WITH ORDINALITY AS sent({names}, digest, row)"
            f" JOIN {self.target.name} old ON {same} AND old.{DIGEST} = sent.digest"
            f" WHERE old.{quoted(self.target.vector)} IS NOT NULL".encode(),
            [kept.column(name).to_pylist() for name in (*key, DIGEST)],
        )
        return frozenset(row for (row,) in found.fetchall())

    def digest(self, rows: pa.Table) -> bytes:
        """A digest of keys and vectors, whatever the order of the rows."""
        names = [*self.target.key, self.target.vector]
        kinds = [self._kinds[self._names.index(n)] for n in names]
        return digest_rows([rows.column(n).combine_chunks() for n in names], kinds).to_bytes(16, "big")

    def write(self, connection: psycopg.Connection[Any], stream: bytes) -> tuple[int, int]:
        """Write encoded rows as part of a transaction: how many were new, and how many replaced others."""
        connection.execute(self._create)
        with connection.cursor() as cursor, cursor.copy(self._copy) as copy:
            copy.write(stream)
        return self.merge(connection)

    def merge(self, connection: psycopg.Connection[Any]) -> tuple[int, int]:
        """From the temporary table into the real one."""
        try:
            found = connection.execute(self._insert).fetchone()
        except load().errors.UniqueViolation as error:
            if self.mode != "fail":
                raise
            detail = error.diag.message_detail or str(error)
            raise DatabaseError(
                f"{self.target.name}: {detail.rstrip('.')}, and --mode is fail.",
                hint="--mode update replaces such rows, --mode skip leaves them as they are.",
            ) from error
        assert found is not None
        new, old, hollow = found
        if hollow and self.mode == "update":
            raise DatabaseError(
                f"{self.target.name}: {hollow} rows whose text had not changed were deleted meanwhile.",
                hint="Run the same command again: they are embedded then.",
            )
        return int(new), int(old)


def _converted(name: str, kind: str, wanted: str, is_vector: bool) -> str:
    """A column as the table wants it. A cast to varchar(n) would cut off what is too long; assignment refuses it."""
    if is_vector or kind == wanted or wanted.startswith(("text", "character")):
        return quoted(name)
    return f"{quoted(name)}::{wanted}"
