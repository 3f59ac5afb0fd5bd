"""Writes several chunks at once to a store: pieces are encoded in parallel and written in order, a few at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING

from shardmill.core.errors import ShardmillError
from shardmill.store import replacing
from shardmill.verbs.split.cutting import Piece
from shardmill.verbs.split.dataset import Chunk, Dataset
from shardmill.verbs.split.encoding import ChunkFile, Encoded, chunk_id, make_encoder, suffix

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_THREADS = 8
_RECORD_EVERY_S = 2.0

OnStep = Callable[[str], None]
Feeding = tuple[Piece, "Future[Encoded]"]


def threads() -> int:
    return max(2, min(_MOST_THREADS, os.cpu_count() or 2))


class ChunkWriter:
    """Writes every chunk that is not written yet.

    A fixed limit on pieces in flight bounds the memory. `on_step` is called when a chunk is written and when that is
    recorded.
    """

    def __init__(
        self,
        dataset: Dataset,
        schema: pa.Schema | None,
        done: list[Chunk],
        on_step: OnStep = lambda step: None,
        record_every_s: float = _RECORD_EVERY_S,
    ) -> None:
        self._dataset, self._spec, self._schema = dataset, dataset.spec, schema
        self._encode = make_encoder(dataset.spec, schema)
        self._done = {chunk.path: chunk for chunk in done}
        self._on_step, self._record_every_s = on_step, record_every_s
        self._slots = threading.Semaphore(2 * threads() + 2)
        self._lock = threading.Lock()
        self._recorded_at = time.monotonic()
        self._failure: BaseException | None = None
        self._queues: dict[str, SimpleQueue[Feeding | None]] = {}

    def write(self, pieces: Iterator[Piece]) -> list[Chunk]:
        """Write the pieces; returns all chunks in order, including those that existed before."""
        order: list[tuple[int, int, str]] = []
        # Every part may have an open chunk that waits for pieces; the additional threads continue with other chunks.
        with (
            ThreadPoolExecutor(threads(), "split-encode") as encoders,
            ThreadPoolExecutor(threads() + len(self._spec.parts), "split-write") as writers,
        ):
            try:
                for piece in pieces:
                    path = self._path(piece)
                    if piece.first:
                        order.append((piece.part, piece.chunk, path))
                    if path in self._done and path not in self._queues:
                        self._check_known(piece, self._done[path])
                    else:
                        self._hand_on(piece, path, encoders, writers)
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                for waiting in self._queues.values():
                    waiting.put(None)
        if self._failure is not None:
            raise self._failure
        self._record()
        return [self._done[path] for _, _, path in sorted(order)]

    def _path(self, piece: Piece) -> str:
        part = self._spec.parts[piece.part]
        return f"{part + '/' if part else ''}chunks/{chunk_id(piece.chunk)}{suffix(self._spec)}"

    def _check_known(self, piece: Piece, chunk: Chunk) -> None:
        if piece.chunk_index != chunk.start_index or (piece.last and piece.stop != chunk.end_index + 1):
            raise ShardmillError(
                f"{chunk.path} was written with items {chunk.start_index:,} to {chunk.end_index:,}.",
                hint="The source returns other items now. Start over with --fresh.",
            )

    def _hand_on(self, piece: Piece, path: str, encoders: ThreadPoolExecutor, writers: ThreadPoolExecutor) -> None:
        self._slots.acquire()
        if self._failure is not None:
            raise self._failure
        if piece.first:
            self._queues[path] = SimpleQueue()
            writers.submit(self._write_chunk, path, self._queues[path])
        self._queues[path].put((piece, encoders.submit(self._encode, piece)))
        if piece.last:
            self._queues.pop(path).put(None)

    def _write_chunk(self, path: str, waiting: SimpleQueue[Feeding | None]) -> None:
        try:
            chunk = self._write_pieces(path, waiting)
            self._on_step("chunk written")
            with self._lock:
                self._done[path] = chunk
            if time.monotonic() - self._recorded_at >= self._record_every_s:
                self._record()
        except _Dropped:
            return
        except BaseException as error:
            self._fail(error)
            while waiting.get() is not None:
                self._slots.release()

    def _write_pieces(self, path: str, waiting: SimpleQueue[Feeding | None]) -> Chunk:
        piece: Piece | None = None
        with (
            replacing(self._dataset.folder + path, self._dataset.store) as file,
            ChunkFile(file, self._spec, self._schema) as chunk,
        ):
            while (fed := waiting.get()) is not None:
                try:
                    piece = fed[0]
                    chunk.write(fed[1].result())
                finally:
                    self._slots.release()
            # If the sync or the rename fails, the error handler reads the queue again to its end.
            waiting.put(None)
            if piece is None or not piece.last:
                raise _Dropped
        return Chunk(
            chunk_id=chunk_id(piece.chunk),
            path=path,
            split=self._spec.parts[piece.part],
            item_count=piece.stop - piece.chunk_index,
            start_index=piece.chunk_index,
            end_index=piece.stop - 1,
            size_bytes=chunk.digest.size_bytes,
            sha256=chunk.digest.hexdigest(),
        )

    def _record(self) -> None:
        with self._lock:
            self._recorded_at = time.monotonic()
            self._dataset.record(list(self._done.values()))
        self._on_step("recorded")

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error


class _Dropped(Exception):
    """The pieces ended before the chunk was complete, because something else failed."""
