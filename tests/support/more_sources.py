"""Rows as Arrow, JSON arrays, pickles and saved datasets."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tests.support.sources import Row

SCHEMA = pa.schema({"key": pa.string(), "body": pa.string(), "n": pa.int64()})
Write = Callable[[list[Row]], bytes]


def as_arrow(table: pa.Table, batch_rows: int, stream: bool, compression: str | None = None) -> bytes:
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return out.getvalue()


def as_arrow_file(rows: list[Row]) -> bytes:
    return as_arrow(pa.Table.from_pylist(rows, SCHEMA), 3, stream=False)


def as_arrow_stream(rows: list[Row]) -> bytes:
    return as_arrow(pa.Table.from_pylist(rows, SCHEMA), 3, stream=True)


def as_one_batch(rows: list[Row]) -> bytes:
    return as_arrow(pa.Table.from_pylist(rows, SCHEMA), 10**6, stream=False)


def as_dictionary(rows: list[Row]) -> bytes:
    table = pa.Table.from_pylist(rows, SCHEMA)
    table = table.set_column(1, "body", table.column("body").combine_chunks().dictionary_encode())
    return as_arrow(table, 3, stream=True)


def as_lz4(rows: list[Row]) -> bytes:
    return as_arrow(pa.Table.from_pylist(rows, SCHEMA), 5, stream=False, compression="lz4")


def as_json(rows: list[Row]) -> bytes:
    return json.dumps(rows).encode()


def as_pretty_json(rows: list[Row]) -> bytes:
    return b"\xef\xbb\xbf\n " + json.dumps(rows, indent=2, ensure_ascii=False).encode() + b"\n\n"


def as_pickle(rows: list[Row]) -> bytes:
    return pickle.dumps(rows)


def as_old_pickle(rows: list[Row]) -> bytes:
    return pickle.dumps(rows, protocol=0)


def as_pickled_columns(rows: list[Row]) -> bytes:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return pickle.dumps({**columns, "n": np.array(columns["n"])}, protocol=5)


WRITERS: dict[str, tuple[str, Write]] = {
    "arrow file": ("arrow", as_arrow_file),
    "arrow stream": ("arrow", as_arrow_stream),
    "one large batch": ("feather", as_one_batch),
    "dictionary": ("arrows", as_dictionary),
    "lz4": ("arrow", as_lz4),
    "json": ("json", as_json),
    "pretty json": ("json", as_pretty_json),
    "pickle": ("pkl", as_pickle),
    "old pickle": ("pickle", as_old_pickle),
    "pickled columns": ("pkl", as_pickled_columns),
}
