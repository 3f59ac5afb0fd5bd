"""Parquet: vectors as lists of a fixed size, row groups with statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pyarrow as pa

from shardmill.results.files.chosen import Write
from shardmill.sinks.parquet import fill_missing, open_writer

_ROW_GROUP_ROWS = 65_536


@contextmanager
def open_parquet(file: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    """Write rows in groups. A missing vector is NaN."""
    waiting: list[pa.RecordBatch] = []
    held = 0

    def write(batch: pa.RecordBatch) -> None:
        nonlocal held
        waiting.append(batch)
        held += batch.num_rows
        if held >= _ROW_GROUP_ROWS:
            flush()

    def flush() -> None:
        nonlocal held
        writer.write_table(fill_missing(pa.Table.from_batches(waiting)), row_group_size=held)
        waiting.clear()
        held = 0

    with open_writer(file, schema) as writer:
        yield write
        if waiting:
            flush()
