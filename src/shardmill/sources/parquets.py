"""Parquet. A shard is a run of row groups of one file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.errors import SourceError, nearest
from shardmill.ranges import split_weighted
from shardmill.sources.base import Fields, ItemBatch, Shard, SourceFile, SourceStat
from shardmill.sources.batches import BATCH_BYTES, BATCH_ROWS, make_kept, over_limit
from shardmill.sources.columns import Column, build_columns, chosen_types, column_names, type_text
from shardmill.sources.cuts import number_shards
from shardmill.sources.files import check_unchanged, empty_source, file_name, readable
from shardmill.sources.template import TextTemplate
from shardmill.store import is_url, locate


class ParquetSource:
    def __init__(self, stat: SourceStat, fields: Fields, max_item_bytes: int) -> None:
        self._stat, self._fields, self._max_item_bytes = stat, fields, max_item_bytes
        self._template = TextTemplate.parse(fields.text)
        self._columns = build_columns(stat, fields)
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self._columns])

    def shards(self, target_bytes: int) -> list[Shard]:
        with ThreadPoolExecutor(16) as pool:
            weights = list(pool.map(self._group_weights, self._stat.files))
        return number_shards(
            (i, (start, stop), sum(groups[start:stop]))
            for i, groups in enumerate(weights)
            for start, stop in split_weighted(groups, target_bytes)
        )

    def _group_weights(self, file: SourceFile) -> list[int]:
        if not file.size_bytes:
            return []
        with _open(file) as parquet:
            check_schema(file, parquet.schema_arrow, self._fields)
            footer = parquet.metadata
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        return [sum(g.column(i).total_compressed_size for i in range(g.num_columns)) for g in groups]

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        file = self._stat.files[shard.file]
        check_unchanged(file)
        names = list(dict.fromkeys((*self._template.names, *(c.name for c in self._columns))))
        rows_done = 0
        with _open(file) as parquet:
            groups = range(shard.start, shard.stop)
            footers = [parquet.metadata.row_group(i) for i in groups]
            weight = shard.weight_bytes / max(1, sum(g.num_rows for g in footers))
            rows = _rows_in_batch(footers, names)
            for batch in parquet.iter_batches(rows, row_groups=list(groups), columns=names, use_threads=False):
                if batch.num_rows:
                    yield self._items(batch, rows_done, weight)
                    rows_done += batch.num_rows
        check_unchanged(file)

    def _items(self, batch: pa.RecordBatch, rows_done: int, weight: float) -> ItemBatch:
        bad: dict[int, str] = {}
        rows: list[dict[str, object]] = [{} for _ in range(batch.num_rows)]
        for name in self._template.names:
            for i, value in enumerate(_values(name, batch.column(name), bad)):
                rows[i][name] = value
        arrays = [_convert(column, batch.column(column.name), bad) for column in self._columns]
        texts: list[str | None] = []
        for i, row in enumerate(rows):
            text, reason = self._template.render(row)
            if text is not None and 4 * len(text) > self._max_item_bytes < (size := len(text.encode())):
                text, reason = None, over_limit("the text", size, self._max_item_bytes)
            if reason:
                bad.setdefault(i, reason)
            texts.append(None if i in bad else text)
        return ItemBatch(
            texts=pa.array(texts, pa.string()),
            kept=make_kept(arrays, self._schema, batch.num_rows),
            lines=list(range(rows_done + 1, rows_done + batch.num_rows + 1)),
            line_count=batch.num_rows,
            bad=dict(sorted(bad.items())),
            size_bytes=int(weight * batch.num_rows),
        )


@contextlib.contextmanager
def _open(file: SourceFile) -> Iterator[pq.ParquetFile]:
    """The file, read a page at a time, so that a large row group does not fill the memory."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(readable(file.place))
        try:
            handle: object = file.place
            if is_url(file.place):
                store, key = locate(file.place)
                handle = stack.enter_context(store.reader(key))
            yield stack.enter_context(
                pq.ParquetFile(handle, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)
            )
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, FileNotFoundError | PermissionError):
                raise
            reason = str(error).partition("\n")[0].rstrip(".")
            raise SourceError(
                f"{file_name(file.place)} is not readable Parquet: {reason}.",
                hint=f"Fetch or write {file.place} again.",
            ) from error


def count_rows(file: SourceFile) -> int:
    with _open(file) as parquet:
        return int(parquet.metadata.num_rows)


def _rows_in_batch(groups: Sequence[pq.RowGroupMetaData], names: Sequence[str]) -> int:
    rows = size = 0
    for group in groups:
        rows += group.num_rows
        for i in range(group.num_columns):
            column = group.column(i)
            if column.path_in_schema.partition(".")[0] in names:
                size += column.total_uncompressed_size
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(size, 1)))


def _values(name: str, array: pa.Array, bad: dict[int, str]) -> list[object]:
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_value(name, array, i, bad) for i in range(len(array))]


def _value(name: str, array: pa.Array, i: int, bad: dict[int, str]) -> object:
    try:
        return array[i].as_py()
    except UnicodeDecodeError:
        bad[i] = f"'{name}' is not valid UTF-8"
        return None


def _convert(column: Column, array: pa.Array, bad: dict[int, str]) -> pa.Array:
    try:
        converted = array.cast(column.type)
        converted.validate(full=True)
        return converted
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([_convert_one(column, array, i, bad) for i in range(len(array))], column.type)


def _convert_one(column: Column, array: pa.Array, i: int, bad: dict[int, str]) -> object:
    try:
        return array[i : i + 1].cast(column.type)[0].as_py()
    except UnicodeDecodeError:
        bad.setdefault(i, f"'{column.name}' is not valid UTF-8")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        bad.setdefault(i, column.refusal(array[i].as_py()))
    return None


def describe(files: Sequence[SourceFile], fields: Fields) -> dict[str, str]:
    """The types of the id and kept columns, by the schema of the first file with rows."""
    for file in files:
        if not file.size_bytes:
            continue
        with _open(file) as parquet:
            if not parquet.metadata.num_rows:
                continue
            schema = parquet.schema_arrow
        check_schema(file, schema, fields)
        chosen = chosen_types(fields)
        return {name: chosen.get(name) or type_text(_plain(schema.field(name).type)) for name in column_names(fields)}
    raise empty_source(files)


def check_schema(file: SourceFile, schema: pa.Schema, fields: Fields) -> None:
    template = TextTemplate.parse(fields.text)
    for name in (*template.names, *column_names(fields)):
        if schema.names.count(name) > 1:
            raise SourceError(f"{file_name(file.place)} has two columns named {name!r}.", hint="Rename one of them.")
        if name not in schema.names:
            raise SourceError(f"no field {name!r} in {file_name(file.place)}.", hint=nearest(name, schema.names))
    if template.single and not pa.types.is_string(kind := _plain(schema.field(template.names[0]).type)):
        strings = [f.name for f in schema if pa.types.is_string(_plain(f.type))]
        raise SourceError(
            f"{template.names[0]!r} in {file_name(file.place)} is of type {kind}, not text.",
            hint=f"Fields that hold text: {', '.join(strings) or 'none'}.",
        )


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without its encoding: dictionaries decoded, every width of string one type."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_null(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return kind
