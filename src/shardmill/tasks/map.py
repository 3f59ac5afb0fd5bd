"""The place of every vector on a fitted map. An item's text is not read, only its vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from shardmill.devices import Device
from shardmill.layout.anchors import Anchors
from shardmill.layout.saved import FitRecord, load_anchors, read_fit
from shardmill.layout.whole import as_matrix, to_whole
from shardmill.tasks.base import Agreement, Output, Prepared, Task
from shardmill.tasks.params import read_params

_PLACED_AT_ONCE = 1024
# Bytes of vectors that one core places in a second, as an order of magnitude.
_BYTES_PER_S = 4_000_000.0


class MapParams(BaseModel):
    """The parameters of the task: the folder of the fitted map, and the columns with vectors and texts.

    Of a text, the start is kept as `excerpt`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fit: str = Field(min_length=1)
    vector: str = Field(min_length=1)
    text: str = ""
    excerpt_characters: int = Field(200, ge=1)


class MapTask(Task):
    """The `map` task: `x`, `y`, and `distance`, the mean cosine distance to the nearest anchors."""

    padded = False
    batch_budget = _PLACED_AT_ONCE
    # A row without a vector has no place.
    null_rows_are_answers = True

    def __init__(self, **params: Any) -> None:
        self.params = read_params(MapParams, params, "map")
        texts = [pa.field("excerpt", pa.string())] if self.params.text else []
        numbers = [pa.field(name, pa.float32()) for name in ("x", "y", "distance")]
        self.output = pa.schema([*numbers, *texts])
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
        """The rounded vectors with their excerpts; a vector that is missing, or has no direction, is None."""
        assert fields is not None
        whole, usable = to_whole(as_matrix(fields.column(self.params.vector), self._record.dims))
        starts = self._excerpts(fields)
        inputs = [(whole[i] if usable[i] else None, starts[i]) for i in range(len(whole))]
        return Prepared(inputs, np.ones(len(inputs), np.int64))

    def _excerpts(self, fields: pa.RecordBatch) -> list[str | None]:
        if not self.params.text:
            return [None] * fields.num_rows
        most = self.params.excerpt_characters
        return [_shorten(value, most) for value in fields.column(self.params.text).to_pylist()]

    def run(self, inputs: Sequence[Any]) -> Output:
        assert self._anchors is not None, "call open() before run()"
        there = [i for i, (vector, _) in enumerate(inputs) if vector is not None]
        values = np.full((3, len(inputs)), np.nan, np.float32)
        if there:
            placed = self._anchors.place(np.stack([inputs[i][0] for i in there]))
            values[0, there], values[1, there] = placed.places.T
            values[2, there] = placed.distances
        missing = np.isnan(values[0])
        columns = [pa.array(column, pa.float32(), mask=missing) for column in values]
        if self.params.text:
            columns.append(pa.array([start for _, start in inputs], pa.string()))
        return Output(pa.RecordBatch.from_arrays(columns, schema=self.output))


def _shorten(value: object, most: int) -> str | None:
    """The start of a text, on one line."""
    if value is None:
        return None
    line = " ".join(str(value)[: 4 * most].split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
