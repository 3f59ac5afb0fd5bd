"""Arrow IPC: a file, which Feather is another name for; or a stream, for a pipe. Compressed with zstd inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any

import pyarrow as pa

from shardmill.results.files.chosen import Write


@contextmanager
def _open(file: IO[bytes], schema: pa.Schema, new: Callable[..., Any]) -> Iterator[Write]:
    with new(file, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        yield writer.write_batch


def open_arrow(file: IO[bytes], schema: pa.Schema) -> AbstractContextManager[Write]:
    return _open(file, schema, pa.ipc.new_file)


def open_stream(file: IO[bytes], schema: pa.Schema) -> AbstractContextManager[Write]:
    return _open(file, schema, pa.ipc.new_stream)
