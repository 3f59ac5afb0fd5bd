"""Write rows into a table: a binary COPY into a temporary table, then one INSERT from there, in key order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardmill.core.errors import DatabaseError
from shardmill.postgres.connect import load
from shardmill.postgres.copy import digest_row, digest_rows, encode, rows_of, sent_type
from shardmill.postgres.definition import DIGEST
from shardmill.postgres.links import Reference
from shardmill.postgres.presets import Field
from shardmill.postgres.tables import types_of
from shardmill.postgres.target import Conflict, Target, all_null, quoted

if TYPE_CHECKING:
    import psycopg

_BATCH = "shardmill_batch"


class Upsert:
    """Writes rows of one schema into one table, converted to the table's column types.

    `fields` lists the fields that fill a column of another name or through an SQL expression; a field that fills two
    columns is listed twice.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        target: Target,
        schema: pa.Schema,
        mode: Conflict,
        fields: Sequence[Field] = (),
        reference: Reference | None = None,
        changed_only: bool = False,
    ) -> None:
        types = types_of(connection, target)
        self.target, self.mode = target, mode
        self._names = schema.names
        self._kinds = [self._sent_as(field) for field in schema]
        self._reference, self._changed_only = reference, changed_only
        self._fields: dict[str, Field] = {}
        again = [field for field in fields if self._fields.setdefault(field.source, field) is not field]
        self._columns = [self._fields[n].column.name if n in self._fields else n for n in self._names]
        self._again = {field.column.name: field.expression(quoted(field.source)) for field in again}
        missing = [name for name in (*self._columns, *self._again) if name not in types]
        if missing:
            raise DatabaseError(f"{target.name} has no column {missing[0]!r}.", hint="Load into another table.")
        self._types = types
        self.key = tuple(self._names[self._columns.index(n)] for n in target.key)
        self._create, self._copy, self._insert = self._statements()

    def _sent_as(self, field: pa.Field) -> str:
        return self.target.vector_type if self._is_vector(field.name) else sent_type(field.type)

    def _is_vector(self, name: str) -> bool:
        return bool(self.target.vector) and name == self.target.vector

    def _statements(self) -> tuple[bytes, bytes, bytes]:
        columns = [
            f"{quoted(name)} {self._types[name] if self._is_vector(name) else kind}"
            for name, kind in zip(self._names, self._kinds, strict=True)
        ]
        sent = ", ".join(map(quoted, self._names))
        # By default a vector of 384 numbers would be moved out of its row (TOAST): not worth it in a temporary table.
        create = (
            f"CREATE TEMPORARY TABLE {_BATCH} ({', '.join(columns)}) WITH (toast_tuple_target = 8160) ON COMMIT DROP"
        )
        copy = f"COPY pg_temp.{_BATCH} ({sent}) FROM STDIN (FORMAT binary)"
        values = {column: self._value(i) for i, column in enumerate(self._columns)} | self._again
        join = ""
        if (reference := self._reference) is not None and reference.nulls:
            values[reference.column], join = reference.known, reference.join
        names, chosen = ", ".join(map(quoted, values)), ", ".join(f"{v} AS {quoted(n)}" for n, v in values.items())
        key = ", ".join(map(quoted, self.target.key))
        insert = (
            f"WITH written AS (INSERT INTO {self.target.name} AS old ({names})"
            f" SELECT {chosen} FROM pg_temp.{_BATCH} {join} ORDER BY {key}"
            f" {self._on_conflict(key)}"
            f" RETURNING xmax::text = '0' AS new, {all_null(self.target.results, 'old')} AS hollow)"
            " SELECT count(*) FILTER (WHERE new), count(*) FILTER (WHERE NOT new), count(*) FILTER (WHERE hollow)"
            " FROM written"
        )
        return create.encode(), copy.encode(), insert.encode()

    def _value(self, i: int) -> str:
        """A column cast to the table's type. A cast to varchar(n) would truncate long text; assignment refuses it."""
        name, kind, wanted = quoted(self._names[i]), self._kinds[i], self._types[self._columns[i]]
        if (field := self._fields.get(self._names[i])) is not None:
            return field.expression(name)
        if self._is_vector(self._names[i]) or kind == wanted or wanted.startswith(("text", "character")):
            return name
        return f"{name}::{wanted}"

    def _on_conflict(self, key: str) -> str:
        """The ON CONFLICT clause. With `changed_only`, a row that is unchanged is sent without its result."""
        if self.mode == "fail":
            return ""
        if self.mode == "skip":
            return f"ON CONFLICT ({key}) DO NOTHING"
        names = [n for n in (*self._columns, *self._again) if n not in self.target.key]
        changes = [f"{quoted(n)} = EXCLUDED.{quoted(n)}" for n in names]
        if self._changed_only:
            digest = quoted(DIGEST)
            unchanged = f"{all_null(self.target.results, 'EXCLUDED')} AND old.{digest} = EXCLUDED.{digest}"
            for name in map(quoted, self.target.results):
                kept = f"{name} = CASE WHEN {unchanged} THEN old.{name} ELSE EXCLUDED.{name} END"
                changes[changes.index(f"{name} = EXCLUDED.{name}")] = kept
        return f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(changes)}"

    def encode(self, rows: pa.Table) -> bytes:
        """The COPY stream of these rows."""
        return encode([rows.column(n).combine_chunks() for n in self._names], self._kinds)

    def unchanged(self, connection: psycopg.Connection[Any], kept: pa.RecordBatch) -> frozenset[int]:
        """The rows that the table already has, with a result and the same digest of what they are made from."""
        names = ", ".join(f"k{i}" for i in range(len(self.key)))
        kinds = [self._kinds[self._names.index(name)] for name in self.key]
        arrays = ", ".join(f"%s::{kind}[]" for kind in kinds)
        values = [
            self._value(self._names.index(name)).replace(quoted(name), f"sent.k{i}") for i, name in enumerate(self.key)
        ]
        same = " AND ".join(
            f"old.{quoted(column)} = {value}" for column, value in zip(self.target.key, values, strict=True)
        )
        found = connection.execute(
            f"SELECT sent.row - 1 FROM unnest({arrays}, %s::bytea[]) WITH ORDINALITY AS sent({names}, digest, row)"
            f" JOIN {self.target.name} old ON {same} AND old.{DIGEST} = sent.digest"
            f" WHERE NOT {all_null(self.target.results, 'old')}".encode(),
            [kept.column(name).to_pylist() for name in (*self.key, DIGEST)],
        )
        return frozenset(row for (row,) in found.fetchall())

    def _digested(self) -> list[int]:
        """The columns that a digest covers: the vector, and of the others those that are stored as they were sent."""
        names = dict.fromkeys((*self.target.key, DIGEST, *self.target.results))
        found = [self._columns.index(name) for name in names]
        return [i for i in found if self._kinds[i] == self._types[self._columns[i]] or self._is_vector(self._names[i])]

    def digest(self, rows: pa.Table) -> bytes:
        """A digest of keys and results that does not depend on the order of the rows."""
        own = self._digested()
        columns = [rows.column(self._names[i]).combine_chunks() for i in own]
        return digest_rows(columns, [self._kinds[i] for i in own]).to_bytes(16, "big")

    def digest_table(self, connection: psycopg.Connection[Any]) -> tuple[int, bytes]:
        """The number of rows in the table, and their digest."""
        names = ", ".join(quoted(self._columns[i]) for i in self._digested())
        rows = total = 0
        sql = f"COPY (SELECT {names} FROM {self.target.name}) TO STDOUT (FORMAT binary)"
        with connection.cursor() as cursor, cursor.copy(sql.encode()) as out:
            for row in rows_of(out):
                rows, total = rows + 1, total + digest_row(row)
        return rows, (total % (1 << 128)).to_bytes(16, "big")

    def write(
        self, connection: psycopg.Connection[Any], stream: bytes, meanwhile: Callable[[], None] = lambda: None
    ) -> tuple[int, int]:
        """Write encoded rows inside a transaction; returns how many were inserted and how many updated.

        `meanwhile` runs while the server works, and runs again if the transaction is retried.
        """
        connection.execute(self._create)
        with connection.cursor() as cursor, cursor.copy(self._copy) as copy:
            copy.write(stream)
        return self._merge(connection, meanwhile)

    def _merge(self, connection: psycopg.Connection[Any], meanwhile: Callable[[], None]) -> tuple[int, int]:
        """Insert the rows of the temporary table into the real one."""
        try:
            with connection.pipeline():
                cursor = connection.execute(self._insert)
                meanwhile()
                found = cursor.fetchone()
        except load().errors.UniqueViolation as error:
            if self.mode != "fail":
                raise
            detail = error.diag.message_detail or str(error)
            raise DatabaseError(
                f"{self.target.name}: {detail.rstrip('.')}, and --mode is fail.",
                hint="--mode update replaces such rows, --mode skip leaves them as they are.",
            ).without_resume() from error
        assert found is not None
        new, old, hollow = found
        if hollow and self._changed_only:
            raise DatabaseError(
                f"{self.target.name}: {hollow} rows would have no {'vector' if self.target.vector else 'result'}: "
                "their text was unchanged, but the rows were deleted during the load, or the task gave them none.",
                hint="Run the same command again. If it says the same, leave out --changed-only: verify counts them.",
            )
        return int(new), int(old)
