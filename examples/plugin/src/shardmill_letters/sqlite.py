"""SQLite as a sink: the rows of a shard and the record of it go in by one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping

import pyarrow as pa

from shardmill.core.errors import UsageError
from shardmill.sinks.base import Delivery

_BATCH_ROWS = 1000


class SqliteDelivery(Delivery):
    """A table `rows` with the columns of the result, and a table `shards` that says what came from which run."""

    def __init__(self, address: str, run: str, schema: pa.Schema) -> None:
        super().__init__(address, run, schema)
        path = address.removeprefix("sqlite:")
        try:
            self._database = sqlite3.connect(path, isolation_level=None, timeout=60)
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("CREATE TABLE IF NOT EXISTS shards (run, shard, digest, PRIMARY KEY (run, shard))")
            columns = ", ".join(f"{_quoted(name)}" for name in schema.names)
            self._database.execute(f"CREATE TABLE IF NOT EXISTS rows (run, shard, place, {columns})")
            self._database.execute("CREATE INDEX IF NOT EXISTS rows_by_shard ON rows (run, shard, place)")
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be used as an SQLite database: {error}.") from error
        there = [row[1] for row in self._database.execute("PRAGMA table_info(rows)")][3:]
        if there != schema.names:
            raise UsageError(
                f"{path} has rows of other columns: {', '.join(there)}.", hint="Name another file for this result."
            )

    def delivered(self) -> Mapping[int, str]:
        found = self._database.execute("SELECT shard, digest FROM shards WHERE run = ?", [self.run])
        return {int(shard): str(digest) for shard, digest in found}

    def deliver(self, shard: int, digest: str, rows: Iterator[pa.RecordBatch]) -> None:
        marks = ", ".join("?" * (3 + len(self.schema.names)))
        place = 0
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for table in ("rows", "shards"):
                self._database.execute(f"DELETE FROM {table} WHERE run = ? AND shard = ?", [self.run, shard])
            for batch in rows:
                values = zip(*(map(_encode, column.to_pylist()) for column in batch.columns), strict=True)
                for i, row in enumerate(values):
                    self._database.execute(f"INSERT INTO rows VALUES ({marks})", [self.run, shard, place + i, *row])
                place += batch.num_rows
            self._database.execute("INSERT INTO shards VALUES (?, ?, ?)", [self.run, shard, digest])
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        columns = ", ".join(map(_quoted, self.schema.names))
        found = self._database.execute(
            f"SELECT {columns} FROM rows WHERE run = ? AND shard = ? ORDER BY place", [self.run, shard]
        )
        while rows := found.fetchmany(_BATCH_ROWS):
            values = zip(*rows, strict=True)
            arrays = [_decode(each, field.type) for each, field in zip(values, self.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def close(self) -> None:
        self._database.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _encode(value: object) -> object:
    """Numbers, texts and bytes as they are; all else as JSON."""
    if value is None or isinstance(value, int | float | str | bytes):
        return value
    return json.dumps(value)


def _decode(values: tuple[object, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else json.loads(str(value)) for value in values], kind)
    if pa.types.is_boolean(kind):
        return pa.array([None if value is None else bool(value) for value in values], kind)
    return pa.array(values, kind)
