"""CSV and TSV with one header. A null is empty, an empty text is `""`; nested values and vectors are JSON."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO

import pyarrow as pa
import pyarrow.csv as pc

from shardmill.core.pool import in_order
from shardmill.results.files.chosen import Write
from shardmill.results.files.json_text import json_texts, pieces


@contextmanager
def _open(file: IO[bytes], schema: pa.Schema, delimiter: str) -> Iterator[Write]:
    flat = pa.schema([pa.field(field.name, _flat_type(field.type)) for field in schema])
    with pc.CSVWriter(file, flat, write_options=pc.WriteOptions(delimiter=delimiter)) as writer:

        def flatten(rows: pa.RecordBatch) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([_flatten(column) for column in rows.columns], schema=flat)

        def write(batch: pa.RecordBatch) -> None:
            for rows in in_order(flatten, pieces(batch)):
                writer.write_batch(rows)

        yield write


def open_csv(file: IO[bytes], schema: pa.Schema) -> AbstractContextManager[Write]:
    return _open(file, schema, ",")


def open_tsv(file: IO[bytes], schema: pa.Schema) -> AbstractContextManager[Write]:
    return _open(file, schema, "\t")


def _flat_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column in a CSV: that of its values if they have a text of their own, else text."""
    if pa.types.is_dictionary(kind):
        return _flat_type(kind.value_type)
    return pa.large_string() if pa.types.is_nested(kind) or _is_bytes(kind) else kind


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
            pa.types.is_binary_view,
        )
    )


def _flatten(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_bytes(column.type):
        texts = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
        return pa.array(texts, pa.large_string())
    return json_texts(column) if pa.types.is_nested(column.type) else column
