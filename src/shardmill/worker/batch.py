"""Inputs of several blocks that go onto the device together. Works on whole arrays, as a batch may be large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.worker.block import Block, Rows


def take_rows(rows: pa.RecordBatch, places: Rows) -> pa.RecordBatch:
    """The rows at these sorted places, without a copy if they are consecutive."""
    if not len(places):
        return rows.slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    return rows.slice(first, len(places)) if last - first + 1 == len(places) else rows.take(pa.array(places))


@dataclass(frozen=True, slots=True)
class Batch:
    """`rows[i]` is an input of `blocks[owners[i]]`."""

    blocks: Sequence[Block]
    owners: Rows
    rows: Rows

    @classmethod
    def of(cls, wanted: Sequence[tuple[Block, Rows]]) -> Batch:
        owners = [np.full(len(rows), i) for i, (_, rows) in enumerate(wanted)]
        none = np.zeros(0, np.int64)
        rows = np.concatenate([none, *(rows for _, rows in wanted)])
        return cls([block for block, _ in wanted], np.concatenate([none, *owners]), rows)

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[Block, int]]) -> Batch:
        """Inputs in this order, each with its block."""
        blocks = {id(block): block for block, _ in pairs}
        numbers = {key: i for i, key in enumerate(blocks)}
        owners = np.array([numbers[id(block)] for block, _ in pairs], np.int64)
        return cls(list(blocks.values()), owners, np.array([row for _, row in pairs], np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Rows | slice) -> Batch:
        return Batch(self.blocks, self.owners[places], self.rows[places])

    def parts(self) -> Iterator[tuple[Block, Rows, Rows]]:
        """For each block: the places in the batch and the inputs of the block."""
        if len(self.blocks) == 1 and len(self.rows):
            yield self.blocks[0], np.arange(len(self.rows)), self.rows
            return
        order = np.argsort(self.owners, kind="stable")
        owners, counts = np.unique(self.owners, return_counts=True)
        for owner, count, stop in zip(owners, counts, np.cumsum(counts), strict=True):
            places = order[stop - count : stop]
            yield self.blocks[owner], places, self.rows[places]

    def inputs(self) -> Any:
        """An array or a record batch if every block has one, else a list."""
        parts = list(self.parts())
        if parts and all(isinstance(block.prepared.inputs, pa.RecordBatch) for block, _, _ in parts):
            found = pa.concat_batches([take_rows(block.prepared.inputs, rows) for block, _, rows in parts])
            places = np.concatenate([places for _, places, _ in parts])
            return found if bool((np.diff(places) > 0).all()) else found.take(pa.array(np.argsort(places)))
        if not parts or any(not isinstance(block.prepared.inputs, np.ndarray) for block, _, _ in parts):
            pairs = zip(self.owners.tolist(), self.rows.tolist(), strict=True)
            return [self.blocks[owner].prepared.inputs[row] for owner, row in pairs]
        made = np.concatenate([block.prepared.inputs[rows] for block, _, rows in parts])
        made[np.concatenate([places for _, places, _ in parts])] = made.copy()
        return made

    def where(self, wanted: Callable[[Block, int], bool]) -> Batch:
        pairs = zip(self.owners.tolist(), self.rows.tolist(), strict=True)
        return self.take(np.flatnonzero([wanted(self.blocks[owner], row) for owner, row in pairs]))

    def costs(self) -> Rows:
        costs = np.empty(len(self), np.int64)
        for block, places, rows in self.parts():
            costs[places] = block.prepared.costs[rows]
        return costs
