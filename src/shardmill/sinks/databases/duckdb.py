"""DuckDB as a sink: vectors are arrays of fixed size, as its vector functions want them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from shardmill.core.errors import DatabaseError
from shardmill.core.extras import missing_package
from shardmill.sinks.base import WatchedRows
from shardmill.sinks.databases.base import DatabaseDelivery
from shardmill.sinks.predicates import quoted
from shardmill.sinks.remembered import refuse_columns

SCHEME = "duckdb:"
_READ_ROWS = 8192
# One process at a time may have the file open.
_PATIENCE_S, _PAUSE_S = 60.0, 0.2


class DuckDbDelivery(DatabaseDelivery):
    scheme = SCHEME
    # Rows that fill no row group, of 122,880, are written twice: first to the log.
    lots_at_once = 8

    def connect(self) -> Any:
        try:
            import duckdb
        except ImportError as error:
            raise missing_package("duckdb") from error
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return duckdb.connect(self.path)
            except duckdb.Error as error:
                if "lock" not in str(error) or time.monotonic() > deadline:
                    reason = str(error).partition("\n")[0].rstrip(".")
                    raise DatabaseError(
                        f"{self.path} cannot be opened by DuckDB: {reason}.",
                        hint="Close the program that has it open, or name another file, which may be written.",
                    ) from error
            time.sleep(_PAUSE_S)

    def has_table(self, name: str) -> bool:
        return bool(self.run("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [name]))

    def create(self) -> None:
        self.database.register("_rows", self._empty())
        mark = f", NULL::TIMESTAMPTZ AS {quoted(self.gone)}" if self.gone else ""
        self.run(f"CREATE TABLE IF NOT EXISTS {quoted(self.table)} AS SELECT *{mark} FROM _rows")
        wanted = self.database.sql(f"SELECT *{mark} FROM _rows LIMIT 0").to_arrow_table().schema
        self.database.unregister("_rows")
        found = self.database.sql(f"SELECT * FROM {quoted(self.table)} LIMIT 0").to_arrow_table().schema
        refuse_columns(self.address, self.shipment, found, wanted)

    def _empty(self) -> pa.Table:
        return self.shipment.schema.empty_table()

    def insert(self, batches: Iterator[pa.RecordBatch]) -> None:
        """As a stream, of which a part is read while another is written."""
        rows = WatchedRows(batches)
        self.database.register("_rows", pa.RecordBatchReader.from_batches(self.shipment.schema, rows))
        names = ", ".join(map(quoted, self.shipment.schema.names))
        try:
            self.run(f"INSERT INTO {quoted(self.table)} ({names}) SELECT * FROM _rows")
        except self.library_errors() as error:
            raise rows.error or error from error
        self.database.unregister("_rows")

    def scan(self) -> Iterator[pa.RecordBatch]:
        self.require_table()
        with self.told():
            yield from self.select(self.living(), [])

    def select(self, condition: str, values: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        columns = ", ".join(map(quoted, self.shipment.schema.names))
        found = self.database.sql(
            f"SELECT {columns} FROM {quoted(self.table)} WHERE {condition}", params=list(values) or None
        )
        for batch in found.to_arrow_reader(_READ_ROWS):
            yield from pa.Table.from_batches([batch]).cast(self.shipment.schema).to_batches()

    def library_errors(self) -> tuple[type[Exception], ...]:
        import duckdb

        return (duckdb.Error,)
