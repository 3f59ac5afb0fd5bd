"""Lines of JSON.

Vectors are arrays, bytes are base64. JSON has neither NaN nor infinity: they are null, as is a missing vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from shardmill.core.pool import in_order
from shardmill.results.files.chosen import Write
from shardmill.results.files.json_text import join_objects, pieces


@contextmanager
def open_jsonl(file: IO[bytes], schema: pa.Schema) -> Iterator[Write]:
    """Write one object per line."""

    def write(batch: pa.RecordBatch) -> None:
        for lines in in_order(_lines, pieces(batch)):
            file.write(lines)

    yield write


def _lines(rows: pa.RecordBatch) -> pa.Buffer:
    texts = join_objects(rows.schema.names, rows.columns, "\n")
    return texts.buffers()[2].slice(0, pc.sum(pc.binary_length(texts)).as_py())
