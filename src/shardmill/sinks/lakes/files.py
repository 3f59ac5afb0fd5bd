"""Data files of tables: Parquet, named by the run and the lot, with the figures by which query engines skip them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.errors import UsageError
from shardmill.sinks.base import Lot, Shipment
from shardmill.store import locate

_ROW_GROUP_ROWS = 65_536
# Longer texts are no bounds: nobody asks for a range of them.
_LONGEST_BOUND = 64


def name_prefix(shipment: Shipment) -> str:
    """What the names of all data files of a run begin with."""
    return f"shardmill-{shipment.plan[:12]}-{shipment.generation}-"


def write_data_file(folder: str, shipment: Shipment, schema: pa.Schema, lot: Lot) -> dict[str, Any]:
    """Write the rows of a lot as a new file below a table's folder; returns its name, size, rows and bounds."""
    name = f"{name_prefix(shipment)}{lot.number:05d}-{uuid.uuid4().hex[:8]}.parquet"
    store, key = locate(f"{folder}/{name}")
    bounds = FileBounds(schema)
    with store.writer(key) as file, pq.ParquetWriter(file, schema, compression="zstd", write_statistics=True) as writer:
        for table in _large(lot.read(), schema):
            bounds.add(table)
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    found = store.head(key)
    return {"path": name, "size": found.size if found else 0, "rows": bounds.rows, "stats": bounds.to_json()}


def has_data_file(folder: str, staged: dict[str, Any]) -> bool:
    store, key = locate(f"{folder}/{staged['path']}")
    return store.head(key) is not None


def delete_strays(folder: str, shipment: Shipment, lots: Sequence[Lot], live: Iterable[str]) -> int:
    """Delete the data files of this run that neither a lot nor the table names: those of attempts that died or lost."""
    store, prefix = locate(f"{folder}/{name_prefix(shipment)}")
    named = {*(lot.staged.get("path") for lot in lots), *(path.rpartition("/")[2] for path in live)}
    strays = [entry.key for entry in store.list(prefix) if entry.key.rpartition("/")[2] not in named]
    store.delete_all(strays)
    return len(strays)


def _large(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= _ROW_GROUP_ROWS:
            yield _cast(held, schema)
            held, rows = [], 0
    if rows:
        yield _cast(held, schema)


def _cast(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    try:
        return pa.Table.from_batches(batches).cast(schema)
    except pa.ArrowInvalid as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(
            f"A value does not fit its column: {reason}.", hint="Keep that column as text: --keep NAME:string"
        ) from error


class FileBounds:
    """The least and the largest value of each plain column, and how many are missing."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._missing = {f.name: 0 for f in schema if not pa.types.is_nested(f.type)}
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}
        self._unbound = {f.name for f in schema if not _is_bound(f.type)}

    def add(self, table: pa.Table) -> None:
        import pyarrow.compute as pc

        self.rows += table.num_rows
        for name in self._missing:
            column = table.column(name)
            self._missing[name] += column.null_count
            if name in self._unbound or column.null_count == len(column):
                continue
            found = pc.min_max(column).as_py()
            if any(_is_no_bound(value) for value in found.values()):
                self._unbound.add(name)
                continue
            self._least[name] = min(self._least.get(name, found["min"]), found["min"])
            self._most[name] = max(self._most.get(name, found["max"]), found["max"])

    def to_json(self) -> str:
        """As Delta's log has them."""
        said = {
            "numRecords": self.rows,
            "minValues": {name: value for name, value in self._least.items() if name not in self._unbound},
            "maxValues": {name: value for name, value in self._most.items() if name not in self._unbound},
            "nullCount": self._missing,
        }
        return json.dumps(said, allow_nan=False)


def _is_bound(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind))


def _is_no_bound(value: Any) -> bool:
    return (isinstance(value, str) and len(value) > _LONGEST_BOUND) or (
        isinstance(value, float) and not -1e308 < value < 1e308
    )
