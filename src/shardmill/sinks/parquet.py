"""Results as Parquet parts in the run folder, one per attempt, in source order."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from shardmill.ledger import Claim, Commit, Ledger
from shardmill.plan import ITEM
from shardmill.sinks.base import ErrorRecord, Finished, Sealed, SinkContext
from shardmill.sinks.keeping import Keeper, Prefix
from shardmill.store import Store
from shardmill.store.parts import PartFile, open_part, readable

_ROW_GROUP_BYTES = 16 << 20
_READ_ROWS = 8192


def open_sink(context: SinkContext) -> ParquetSink:
    """The parts of a run.

    Rows of a query are not kept before their shard is committed: they may change, so that it would be unknown which of
    them an earlier attempt did.
    """
    ledger, plan = context.ledger, context.plan
    keeper = None if plan.work.query else Keeper(ledger.kept, plan, context.numerics, context.on_step)
    return ParquetSink(ledger, context.kept, context.output, keeper, numbered=context.rows_vary)


class ParquetSink:
    """With a `keeper`, rows are kept before their shard is committed, and those of earlier attempts are used.

    If items may have no row, each row is stored with the number of its item instead of its number in the item.
    """

    salt = b""

    def __init__(
        self, ledger: Ledger, kept: pa.Schema, made: pa.Schema, keeper: Keeper | None = None, *, numbered: bool = False
    ) -> None:
        self.ledger, self._keeper = ledger, keeper
        self.schema = pa.schema([*kept, *made])
        if numbered:
            self.schema = self.schema.append(pa.field(ITEM, pa.int64()))
        self._numbers = [f.name for f in made if pa.types.is_floating(f.type)]

    def begin(self, claim: Claim) -> StagedPart:
        prefix = Prefix(self._keeper, claim) if self._keeper is not None else None
        return StagedPart(self.ledger, claim, self.schema, self._numbers, prefix)

    def unchanged(self, kept: pa.RecordBatch) -> frozenset[int]:
        return frozenset()

    def close(self) -> None:
        pass


class StagedPart:
    """One part, named after its attempt. It does not count until a commit names it."""

    complete = False

    def __init__(
        self, ledger: Ledger, claim: Claim, schema: pa.Schema, numbers: Sequence[str], prefix: Prefix | None = None
    ) -> None:
        self._ledger = ledger
        self._schema, self._numbers, self._prefix = schema, numbers, prefix
        self._key = f"parts/{claim.shard:06d}.{claim.attempt}.parquet"
        self._file = PartFile(ledger.store.writer(self._key))
        self._writer = open_writer(self._file, schema, numbers)
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._committing = False
        self.done = 0
        self.carried: Sealed | None = None
        if prefix is not None:
            self._take_back(prefix)

    def _take_back(self, prefix: Prefix) -> None:
        """Begin the part with the rows that earlier attempts kept."""
        try:
            for rows in prefix.take_back(self._decode):
                self._add(rows)
        except BaseException:
            self.abandon()
            raise
        self.done, self.carried = prefix.done, prefix.carried

    @property
    def done_digest(self) -> str:
        return self.carried.items_digest if self.carried is not None else ""

    def distrust(self) -> str:
        if self._prefix is not None:
            self._prefix.forget()
        return "They were deleted, and the shard is done again from its first row."

    def write(self, rows: pa.Table, items: NDArray[np.int64]) -> None:
        if ITEM in self._schema.names:
            rows = rows.append_column(ITEM, pa.array(items, pa.int64())).select(self._schema.names)
        self._add(rows)
        if self._prefix is not None:
            self._prefix.write(rows)

    def _add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def finish(self, items: Finished) -> list[ErrorRecord]:
        if self._prefix is not None:
            self._prefix.finish(items, self._encode)
        return []

    def _encode(self, rows: list[pa.Table]) -> bytes:
        """Rows as a small Parquet file of their own."""
        data = io.BytesIO()
        file = PartFile(data)
        writer = open_writer(file, self._schema, self._numbers)
        if rows:
            writer.write_table(fill_missing(pa.concat_tables(rows)))
        with file.footer():
            writer.close()
        return data.getvalue()

    def _decode(self, data: bytes) -> pa.Table:
        opened, marked = open_part(io.BytesIO(data))
        if not opened.schema_arrow.equals(self._schema):
            raise ValueError("rows of another schema")
        return pa.Table.from_batches(_read_batches(opened, marked), schema=self._schema)

    def _flush(self) -> None:
        if self._waiting:
            table = fill_missing(pa.concat_tables(self._waiting))
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._waiting, self._waiting_bytes = [], 0

    def seal(self, lines: int) -> None:
        """Make the part durable. The shard must not be committed before this returns."""
        self._flush()
        with self._file.footer():
            self._writer.close()
        self._file.close()

    def commit(self, record: Commit) -> bool:
        self._committing = True
        record = replace(record, part=self._key, digest=self._file.hexdigest(), part_bytes=self._file.size_bytes)
        won = self._ledger.commits.add(record)
        if not won:
            self._ledger.store.delete(self._key)
        if self._prefix is not None:
            self._prefix.delete()
        return won

    def abandon(self) -> None:
        """Delete the part, unless a commit that names it may exist."""
        if self._committing:
            return
        with contextlib.suppress(Exception):
            self._writer.close()
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(Exception):
            self._ledger.store.delete(self._key)


def open_writer(file: Any, schema: pa.Schema, numbers: Sequence[str] = ()) -> pq.ParquetWriter:
    """A writer that compresses the kept columns, but not vectors, which do not compress.

    `numbers` are columns of floats that rarely repeat: a dictionary would be as long as the column, but their high
    bytes are alike.
    """
    compression = {}
    for field in schema:
        if pa.types.is_fixed_size_list(field.type):
            compression[f"{field.name}.list.element"] = "none"
        elif not pa.types.is_nested(field.type):
            compression[field.name] = "zstd"
    plain = [f.name for f in schema if not pa.types.is_nested(f.type) and f.name not in numbers]
    return pq.ParquetWriter(
        file,
        schema,
        compression=compression or "zstd",
        use_dictionary=plain or False,
        use_byte_stream_split=list(numbers) or False,
        write_page_index=False,
        write_page_checksum=True,
    )


def read_part(store: Store, commit: Commit, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a part, a few thousand at a time; a missing vector is null. A damaged part is an error."""
    place = f"{store.url}/{commit.part}"
    with readable(place), store.reader(commit.part) as file:
        opened, marked = open_part(file, place, commit.digest)
        yield from _read_batches(opened, marked, columns)


def read_part_around(
    store: Store, commit: Commit, columns: list[str], rows: Sequence[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The row groups of a part that these rows are in, a few thousand rows at a time, each with its first row."""
    place = f"{store.url}/{commit.part}"
    with readable(place), store.reader(commit.part) as file:
        opened, marked = open_part(file, place, commit.digest)
        first = 0
        for group in range(opened.metadata.num_row_groups):
            stop = first + opened.metadata.row_group(group).num_rows
            if any(first <= row < stop for row in rows):
                for batch in opened.iter_batches(_READ_ROWS, [group], columns):
                    yield first, restore_missing(batch, marked=marked)
                    first += batch.num_rows
            first = stop


def read_held_part(store: Store, commit: Commit, columns: list[str]) -> pa.Table:
    """Columns of a small part, which is held in memory.

    A thread of Arrow's may let go of a Python file as late as at the end of the interpreter, which aborts it.
    """
    place = f"{store.url}/{commit.part}"
    with readable(place):
        return open_part(pa.BufferReader(store.get(commit.part)), place, commit.digest)[0].read(columns)


def read_schema(store: Store, commit: Commit) -> pa.Schema:
    """The columns of a part as stored."""
    place = f"{store.url}/{commit.part}"
    with readable(place), store.reader(commit.part) as file:
        return open_part(file, place, commit.digest)[0].schema_arrow


def read_batches(file: Any) -> Iterator[pa.RecordBatch]:
    """As `read_part`, from an open file whose digest was compared with that of its commit, on this thread."""
    opened, marked = open_part(file)
    yield from _read_batches(opened, marked, threads=False)


def _read_batches(
    opened: pq.ParquetFile, marked: bool, columns: list[str] | None = None, threads: bool = True
) -> Iterator[pa.RecordBatch]:
    for batch in opened.iter_batches(batch_size=_READ_ROWS, columns=columns, use_threads=threads):
        yield restore_missing(batch, marked=marked)


def fill_missing(table: pa.Table) -> pa.Table:
    """Write a missing vector as NaN of a kind that no computation makes.

    Arrow before version 26 cannot read nulls among vectors of fixed size.
    """
    for i, field in enumerate(table.schema):
        column = table.column(i)
        if is_vector(field.type) and column.null_count:
            column = column.combine_chunks()
            matrix = vectors(column)
            matrix[column.is_null().to_numpy(zero_copy_only=False)] = _missing(matrix.dtype)
            filled = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), type=field.type)
            table = table.set_column(i, field, filled)
    return table


def restore_missing(batch: pa.RecordBatch, *, marked: bool) -> pa.RecordBatch:
    """Undo `fill_missing`. In parts that are not `marked`, of earlier versions, any vector of NaN is a missing one."""
    columns = batch.columns
    for i, field in enumerate(batch.schema):
        if is_vector(field.type):
            matrix = vectors(columns[i])
            missing = np.isnan(matrix[:, 0])
            missing[missing] = _is_missing(matrix[missing], marked)
            if missing.any():
                flat = pa.array(matrix.reshape(-1))
                columns[i] = pa.FixedSizeListArray.from_arrays(flat, type=field.type, mask=pa.array(missing))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch


def _is_missing(matrix: NDArray[Any], marked: bool) -> NDArray[np.bool_]:
    if not marked:
        return np.asarray(np.isnan(matrix).all(axis=1))
    bits = np.dtype(f"u{matrix.dtype.itemsize}")
    wanted = _missing(matrix.dtype).view(bits)
    return np.asarray((np.ascontiguousarray(matrix).view(bits) == wanted).all(axis=1))


def _missing(dtype: np.dtype[Any]) -> Any:
    """NaN with a payload; 0x155 fits into half precision, too."""
    bits = np.dtype(f"u{dtype.itemsize}")
    return (np.array(np.nan, dtype).view(bits) | bits.type(0x155)).view(dtype)


def is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type))


def vectors(column: pa.FixedSizeListArray) -> NDArray[Any]:
    """A column of vectors as a matrix, with NaN for null rows."""
    dims = column.type.list_size
    flat = column.values.to_numpy(zero_copy_only=False)[column.offset * dims : (column.offset + len(column)) * dims]
    matrix: NDArray[Any] = flat.reshape(len(column), dims)
    if column.null_count:
        matrix = matrix.copy()
        matrix[column.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return matrix
