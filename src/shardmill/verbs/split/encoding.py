"""Encodes pieces of a chunk: unchanged lines, items of a JSON array, or row groups."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardmill.core.compression import SUFFIXES, squeezer
from shardmill.store.digests import DigestFile
from shardmill.verbs.split.cutting import Piece
from shardmill.verbs.split.spec import SplitSpec

if TYPE_CHECKING:
    import pyarrow as pa

# Buffers to write one after another, or an Arrow table.
Encoded = Any


def suffix(spec: SplitSpec) -> str:
    """The suffix of a chunk's name."""
    return ".parquet" if spec.format == "parquet" else f".{spec.format}{SUFFIXES[spec.compress]}"


def chunk_id(number: int) -> str:
    """The id of a chunk, with six digits so that names sort like numbers.

    >>> chunk_id(1000) > chunk_id(999)
    True
    """
    return f"chunk-{number:06d}"


def make_encoder(spec: SplitSpec, schema: pa.Schema | None) -> Callable[[Piece], Encoded]:
    """A function that encodes a piece as bytes, or as rows for a Parquet writer."""
    if spec.format == "parquet":
        from shardmill.verbs.split.tables import parse_rows

        assert schema is not None
        return lambda piece: parse_rows(piece.block(), schema, piece.index)
    # Each piece becomes a separate frame or member: they are compressed in parallel and concatenated.
    squeeze = squeezer(spec.compress)
    if spec.format == "json":
        return lambda piece: [squeeze(_as_array(piece))]
    if spec.compress == "none":
        return lambda piece: [block.data for block in piece.blocks]
    return lambda piece: [squeeze(piece.block().data)]


def _as_array(piece: Piece) -> bytes:
    """One JSON document per chunk: its id, then the items, then its item count."""
    from shardmill.verbs.split.tables import check_lines

    block = piece.block()
    check_lines(block, piece.index)
    head = tail = b""
    if piece.first:
        start = {"chunk_id": chunk_id(piece.chunk), "start_index": piece.chunk_index}
        head = json.dumps(start)[:-1].encode() + b', "items": [\n'
    if piece.last:
        end = {"end_index": piece.stop - 1, "item_count": piece.stop - piece.chunk_index}
        tail = b"\n], " + json.dumps(end)[1:].encode() + b"\n"
    separator = b"" if piece.first else b",\n"
    return b"".join((head, separator, bytes(block.data[:-1]).replace(b"\n", b",\n"), tail))


class ChunkFile:
    """One chunk being written: bytes unchanged, rows through a Parquet writer."""

    def __init__(self, file: Any, spec: SplitSpec, schema: pa.Schema | None) -> None:
        self.digest = DigestFile(file)
        self._writer = None
        if schema is not None and spec.format == "parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pool = pa.system_memory_pool()
            self._writer = pq.ParquetWriter(self.digest, schema, compression=spec.compress, memory_pool=pool)

    def write(self, piece: Encoded) -> None:
        if self._writer is not None:
            self._writer.write_table(piece, row_group_size=max(1, len(piece)))
            return
        for data in piece:
            self.digest.write(data)

    def __enter__(self) -> ChunkFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None:
            # A writer left open would close itself only after its file is closed.
            with contextlib.suppress(*([] if kind is None else [Exception])):
                self._writer.close()
