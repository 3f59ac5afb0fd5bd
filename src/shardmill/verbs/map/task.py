"""The place of every vector on a fitted map. Of a text, if there is one, the start and a digest are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.tasks.base import Agreement, Output, Prepared, Task
from shardmill.tasks.params import read_params
from shardmill.verbs.map.layout.anchors import Anchors
from shardmill.verbs.map.layout.saved import FitRecord, load_anchors, read_fit
from shardmill.verbs.map.layout.whole import as_matrix, to_whole
from shardmill.verbs.map.params import MapParams

EXCERPT_CHARACTERS = 200
# Nearest anchors that are kept of each row: those who look for rows like it begin there.
KEPT_ANCHORS = 3
_PLACED_AT_ONCE = 1024
# Bytes of vectors that one core places in a second, as an order of magnitude.
_BYTES_PER_S = 4_000_000.0


class MapTask(Task):
    """The `map` task: `x`, `y`, `distance`, the mean cosine distance to the nearest anchors, and `anchors`, these."""

    padded = False
    batch_budget = _PLACED_AT_ONCE
    # A row without a vector has no place.
    null_rows_are_answers = True

    def __init__(self, **params: Any) -> None:
        self.params = read_params(MapParams, params, "map")
        numbers = [pa.field(name, pa.float32()) for name in ("x", "y", "distance")]
        texts = [pa.field("excerpt", pa.string()), pa.field("text_digest", pa.int64())] if self.params.text else []
        self.output = pa.schema([*numbers, pa.field("anchors", pa.list_(pa.int32(), KEPT_ANCHORS)), *texts])
        self.fields = tuple(dict.fromkeys(name for name in (self.params.vector, self.params.text) if name))
        self._anchors: Anchors | None = None

    @cached_property
    def _record(self) -> FitRecord:
        return read_fit(self.params.fit)

    def fingerprint(self) -> dict[str, str]:
        return {"map": self._record.digest}

    def open(self, device: Device) -> None:
        self._anchors = load_anchors(self.params.fit)

    def bytes_per_s(self, kind: str) -> float:
        return _BYTES_PER_S

    def agreement(self, precision: str) -> Agreement:
        return "exact"

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """The rounded vectors, each with its text; a vector that is missing, or has no direction, is None."""
        assert fields is not None
        whole, usable = to_whole(as_matrix(fields.column(self.params.vector), self._record.dims))
        found = fields.column(self.params.text).to_pylist() if self.params.text else [None] * len(whole)
        inputs = [(whole[i] if usable[i] else None, found[i]) for i in range(len(whole))]
        return Prepared(inputs, np.ones(len(inputs), np.int64))

    def run(self, inputs: Sequence[Any]) -> Output:
        assert self._anchors is not None, "call open() before run()"
        there = [i for i, (vector, _) in enumerate(inputs) if vector is not None]
        values = np.full((3, len(inputs)), np.nan, np.float32)
        near = np.zeros((len(inputs), KEPT_ANCHORS), np.int32)
        if there:
            placed = self._anchors.place(np.stack([inputs[i][0] for i in there]))
            values[0, there], values[1, there] = placed.places.T
            values[2, there] = placed.distances
            # A map of one or two anchors repeats the last.
            near[there] = np.pad(placed.nearest, ((0, 0), (0, KEPT_ANCHORS)), mode="edge")[:, :KEPT_ANCHORS]
        missing = np.isnan(values[0])
        columns = [pa.array(column, pa.float32(), mask=missing) for column in values]
        flat = pa.array(near.ravel(), pa.int32())
        columns.append(pa.FixedSizeListArray.from_arrays(flat, KEPT_ANCHORS, mask=pa.array(missing)))
        if self.params.text:
            texts = [None if text is None else str(text) for _, text in inputs]
            columns.append(pa.array([None if text is None else shorten(text) for text in texts], pa.string()))
            columns.append(pa.array([None if text is None else digest_text(text) for text in texts], pa.int64()))
        return Output(pa.RecordBatch.from_arrays(columns, schema=self.output))


def shorten(text: str) -> str:
    """The start of a text, on one line."""
    line = " ".join(text[: 4 * EXCERPT_CHARACTERS].split())
    return line if len(line) <= EXCERPT_CHARACTERS else line[: EXCERPT_CHARACTERS - 1].rstrip() + "…"


def digest_text(text: str) -> int:
    """64 bits that equal texts share."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
