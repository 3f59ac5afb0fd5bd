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
from shardmill.sinks.keeping import Keeper, KeptPiece, Prefix, Written
from shardmill.sinks.lineage import encode_lineage, read_lineage
from shardmill.store import Store
from shardmill.store.parts import PartFile, open_own, open_part, readable
from shardmill.store.recipes import RECIPE, ComposedPart, PartName, Recipe, RecipeBuilder, find_recipe

_ROW_GROUP_BYTES = 16 << 20
_READ_ROWS = 8192


def open_sink(context: SinkContext) -> ParquetSink:
    """The parts of a run.

    Rows of a query are not kept before their shard is committed: they may change, so that it would be unknown which of
    them an earlier attempt did.
    """
    ledger, plan = context.ledger, context.plan
    keeper = None if plan.work.query else Keeper(ledger.kept, plan, context.numerics, context.on_step)
    return ParquetSink(ledger, context.kept, context.output, keeper, numbered=context.rows_vary, salt=context.salt)


class ParquetSink:
    """With a `keeper`, rows are kept before their shard is committed, and those of earlier attempts are used.

    If items may have no row, each row is stored with the number of its item instead of its number in the item.
    """

    def __init__(
        self,
        ledger: Ledger,
        kept: pa.Schema,
        made: pa.Schema,
        keeper: Keeper | None = None,
        *,
        numbered: bool = False,
        salt: bytes = b"",
    ) -> None:
        self.ledger, self._keeper, self.salt = ledger, keeper, salt
        self.schema = part_schema(kept, made, numbered=numbered)
        self._numbers = [f.name for f in made if pa.types.is_floating(f.type)]

    def begin(self, claim: Claim) -> StagedPart:
        prefix = Prefix(self._keeper, claim) if self._keeper is not None else None
        return StagedPart(self.ledger, claim, self.schema, self._numbers, prefix)

    def unchanged(self, kept: pa.RecordBatch) -> frozenset[int]:
        return frozenset()

    def close(self) -> None:
        pass


def part_schema(kept: pa.Schema, made: pa.Schema, *, numbered: bool) -> pa.Schema:
    """The columns of a part."""
    return pa.schema([*kept, *made, *([pa.field(ITEM, pa.int64())] if numbered else [])])


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
        self._recipe = RecipeBuilder()
        # None if it is not known of all items.
        self._lineage: list[pa.RecordBatch] | None = []
        self._made: Recipe | None = None
        self._committing = False
        self.done = 0
        self.carried: Sealed | None = None
        if prefix is not None:
            self._take_back(prefix)

    def _take_back(self, prefix: Prefix) -> None:
        """Begin the part with the rows that earlier attempts kept."""
        try:
            for piece in prefix.take_back(self._decode):
                self._add(piece.rows, piece.recipe)
                self._add_lineage(piece.lineage)
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

    def write(self, rows: pa.Table, items: NDArray[np.int64], recipe: Recipe | None = None) -> None:
        if ITEM in self._schema.names:
            rows = rows.append_column(ITEM, pa.array(items, pa.int64())).select(self._schema.names)
        self._add(rows, recipe)
        if self._prefix is not None:
            self._prefix.write(rows, recipe)

    def take_over(self, recipe: Recipe, lineage: pa.Table) -> None:
        """Be a shard whose rows all stay where they are."""
        self._recipe.add(recipe, 0)
        self._add_lineage(lineage.to_batches())

    def _add(self, rows: pa.Table, recipe: Recipe | None) -> None:
        self._recipe.add(recipe, rows.num_rows)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def finish(self, items: Finished) -> list[ErrorRecord]:
        self._add_lineage(None if items.lineage is None else [items.lineage])
        if self._prefix is not None:
            self._prefix.finish(items, self._encode)
        return []

    def _add_lineage(self, batches: Sequence[pa.RecordBatch] | None) -> None:
        if batches is None:
            self._lineage = None
        elif self._lineage is not None:
            self._lineage += batches

    def _encode(self, written: list[Written], lineage: Sequence[pa.RecordBatch]) -> bytes:
        """Rows as a small Parquet file of their own."""
        data, recipe = io.BytesIO(), RecipeBuilder()
        file = PartFile(data)
        writer = open_writer(file, self._schema, self._numbers)
        for rows, own in written:
            recipe.add(own, rows.num_rows)
        if written:
            writer.write_table(fill_missing(pa.concat_tables([rows for rows, _ in written])))
        _write_recipe(writer, recipe.make())
        with file.footer(encode_lineage(lineage) if lineage else b""):
            writer.close()
        return data.getvalue()

    def _decode(self, data: bytes) -> KeptPiece:
        opened, marked = open_own(io.BytesIO(data))
        if not opened.schema_arrow.equals(self._schema):
            raise ValueError("rows of another schema")
        lineage = read_lineage(io.BytesIO(data))
        rows = pa.Table.from_batches(_read_batches(opened, marked), schema=self._schema)
        return KeptPiece(rows, None if lineage is None else lineage.to_batches(), find_recipe(opened))

    def _flush(self) -> None:
        if self._waiting:
            table = fill_missing(pa.concat_tables(self._waiting))
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._waiting, self._waiting_bytes = [], 0

    def seal(self, lines: int) -> None:
        """Make the part durable. The shard must not be committed before this returns."""
        self._flush()
        self._made = self._recipe.make()
        _write_recipe(self._writer, self._made)
        with self._file.footer(encode_lineage(self._lineage) if self._lineage else b""):
            self._writer.close()
        self._file.close()

    def commit(self, record: Commit) -> bool:
        self._committing = True
        borrowed = self._made.borrowed_bytes if self._made is not None else 0
        file = self._file
        record = replace(record, part=self._key, digest=file.hexdigest(), part_bytes=file.size_bytes)
        record = replace(record, borrowed_bytes=borrowed)
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


def _write_recipe(writer: pq.ParquetWriter, recipe: Recipe | None) -> None:
    if recipe is not None:
        writer.add_key_value_metadata({RECIPE.decode(): recipe.encode().decode()})


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


def read_rows_at(
    store: Store, commit: Commit, rows: NDArray[np.int64], columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a part at these places, which are in order, some at a time."""
    place = f"{store.url}/{commit.part}"
    with readable(place), store.reader(commit.part) as file:
        opened, marked = open_part(file, place, commit.digest)
        tables: Iterator[pa.Table]
        if isinstance(opened, ComposedPart):
            tables = (opened.take(rows[at : at + _READ_ROWS], columns) for at in range(0, len(rows), _READ_ROWS))
        else:
            tables = _take_groups(opened, rows, columns)
        for table in tables:
            for batch in table.combine_chunks().to_batches():
                yield restore_missing(batch, marked=marked)


def _take_groups(opened: pq.ParquetFile, rows: NDArray[np.int64], columns: list[str] | None) -> Iterator[pa.Table]:
    footer = opened.metadata
    starts = np.cumsum([0, *(footer.row_group(group).num_rows for group in range(footer.num_row_groups))])
    groups = np.searchsorted(starts, rows, "right") - 1
    for group in np.unique(groups).tolist():
        places = rows[groups == group] - starts[group]
        yield opened.read_row_group(group, columns, use_threads=False).take(pa.array(places))


def read_held_part(store: Store, commit: Commit, columns: list[str]) -> pa.Table:
    """Columns of a small part, which is held in memory.

    A thread of Arrow's may let go of a Python file as late as at the end of the interpreter, which aborts it.
    """
    place = f"{store.url}/{commit.part}"
    with readable(place):
        found: pa.Table = open_part(pa.BufferReader(store.get(commit.part)), place, commit.digest)[0].read(columns)
        return found


def read_schema(store: Store, commit: Commit) -> pa.Schema:
    """The columns of a part as stored."""
    place = f"{store.url}/{commit.part}"
    with readable(place), store.reader(commit.part) as file:
        found: pa.Schema = open_part(file, place, commit.digest)[0].schema_arrow
        return found


def read_borrowed(store: Store, commit: Commit) -> tuple[PartName, ...]:
    """The parts of earlier editions that a part has rows of."""
    place = f"{store.url}/{commit.part}"
    with readable(place), store.reader(commit.part) as file:
        recipe = find_recipe(open_own(file, place, commit.digest)[0])
        return () if recipe is None else recipe.parts


def read_batches(file: Any, place: str) -> Iterator[pa.RecordBatch]:
    """As `read_part`, from an open file whose digest was compared with that of its commit, on this thread."""
    opened, marked = open_part(file, place)
    yield from _read_batches(opened, marked, threads=False)


def _read_batches(
    opened: pq.ParquetFile | ComposedPart, marked: bool, columns: list[str] | None = None, threads: bool = True
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
