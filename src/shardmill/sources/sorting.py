"""Sorts any number of rows by a key in bounded memory: sorted runs are spilled to disk and merged, some at a time."""

from __future__ import annotations

import bisect
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Added to every row: rows with equal keys stay in the order in which they came.
ORDER = "order"
_HELD_BYTES = 64 << 20
_BATCH_BYTES = 1 << 20
_MERGED_AT_ONCE = 32


class ExternalSort:
    """Rows go in by `add` and come out of `drain`, sorted by `key`, null last. Holds about `held_bytes` in memory.

    It spills into a folder of its own, which is deleted at the end of the `with` block.
    """

    def __init__(self, key: str, *, held_bytes: int = _HELD_BYTES, merged_at_once: int = _MERGED_AT_ONCE) -> None:
        self._key, self._held_bytes, self._merged_at_once = key, held_bytes, max(2, merged_at_once)
        self._held: list[pa.RecordBatch] = []
        self._bytes = self._rows = self._files = 0
        self._spilled: list[Path] = []

    def __enter__(self) -> ExternalSort:
        self._folder = tempfile.TemporaryDirectory(prefix="shardmill-sort-")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._folder.cleanup()

    def add(self, rows: pa.RecordBatch) -> None:
        order = pa.array(range(self._rows, self._rows + rows.num_rows), pa.int64())
        self._rows += rows.num_rows
        self._held.append(rows.append_column(ORDER, order))
        self._bytes += rows.nbytes
        if self._bytes >= self._held_bytes:
            self._spill(self._take_held())

    def drain(self) -> Iterator[pa.RecordBatch]:
        """All rows in order; what was spilled is read once more for every `merged_at_once` times as many runs."""
        if not self._spilled:
            yield from self._take_held()
            return
        self._spill(self._take_held())
        while len(self._spilled) > self._merged_at_once:
            first, self._spilled = self._spilled[: self._merged_at_once], self._spilled[self._merged_at_once :]
            self._spill(self._merge(first))
        yield from self._merge(self._spilled)

    def _take_held(self) -> Iterator[pa.RecordBatch]:
        held, self._held, self._bytes = self._held, [], 0
        yield from self._sort(held)

    def _sort(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sorted batches of about `_BATCH_BYTES`."""
        if not batches:
            return
        table = pa.Table.from_batches(batches)
        by = [(self._key, "ascending"), (ORDER, "ascending")]
        places = pc.sort_indices(table, sort_keys=by)
        step = max(1, _BATCH_BYTES * table.num_rows // max(1, table.nbytes))
        for at in range(0, table.num_rows, step):
            yield from table.take(places.slice(at, step)).combine_chunks().to_batches()

    def _spill(self, batches: Iterable[pa.RecordBatch]) -> None:
        path = Path(self._folder.name) / f"{self._files:06d}.arrow"
        self._files += 1
        writer: Any = None
        with open(path, "wb") as file:
            for batch in batches:
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
        if writer is not None:
            self._spilled.append(path)

    def _merge(self, paths: list[Path]) -> Iterator[pa.RecordBatch]:
        """Merge sorted files. Each round takes what is not above the least of the last rows in hand, in all files."""
        files = [_read(path) for path in paths]
        heads = [next(file) for file in files]
        while heads:
            bound = min(self._place(head, head.num_rows - 1) for head in heads)
            taken, left, still = [], [], []
            for head, file in zip(heads, files, strict=True):
                stop = bisect.bisect_right(range(head.num_rows), bound, key=partial(self._place, head))
                taken.append(head.slice(0, stop))
                rest = head.slice(stop) if stop < head.num_rows else next(file, None)
                if rest is not None:
                    left.append(rest)
                    still.append(file)
            heads, files = left, still
            yield from self._sort(taken)
        for path in paths:
            path.unlink()

    def _place(self, batch: pa.RecordBatch, row: int) -> tuple[bool, Any, int]:
        key = batch.column(self._key)[row].as_py()
        return key is None, 0 if key is None else key, batch.column(ORDER)[row].as_py()


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    with open(path, "rb") as file:
        yield from pa.ipc.open_stream(file)
