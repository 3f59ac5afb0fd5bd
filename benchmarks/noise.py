"""A run with random vectors, made by a task without a model, for benchmarks of what follows a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardmill import run as runs
from shardmill.core.devices import Device
from shardmill.plan.spec import make_spec
from shardmill.tasks.base import Output, Prepared, Task
from shardmill.testing import InProcessEngine

WORDS = pa.array([f"word{i}" for i in range(20_000)])
WORDS_OF_A_TEXT = 12
SOURCE_ROWS = 100_000


class Noise(Task):
    """Random vectors."""

    batch_budget = 100_000

    def __init__(self, dims: int, dtype: str) -> None:
        self.dims, self.dtype = dims, np.dtype(dtype)
        self.output = pa.schema([pa.field("embedding", pa.list_(pa.from_numpy_dtype(self.dtype), dims))])
        self._draws = np.random.default_rng(0)

    def open(self, device: Device) -> None:
        pass

    def fingerprint(self) -> dict[str, str]:
        return {"model": "noise"}

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        return Prepared(texts, np.full(len(texts), WORDS_OF_A_TEXT, np.int64))

    def run(self, inputs: Sequence[Any]) -> Output:
        made = self._draws.standard_normal((len(inputs), self.dims), np.float32).astype(self.dtype)
        column = pa.FixedSizeListArray.from_arrays(pa.array(made.ravel()), self.dims)
        return Output(pa.RecordBatch.from_arrays([column], schema=self.output))

    def embed_query(self, text: str) -> np.ndarray[Any, Any]:
        return np.random.default_rng(len(text) + ord(text[5])).standard_normal(self.dims, np.float32)


def make_run(folder: Path, rows: int, dims: int, dtype: str, keep: str) -> Path:
    """A finished run over a Parquet file with an id, a share, a day and a text of twelve words."""
    rng = np.random.default_rng(1)
    schema = pa.schema({"id": pa.int64(), "share": pa.float64(), "day": pa.int32(), "text": pa.string()})
    with pq.ParquetWriter(folder / "items.parquet", schema) as writer:
        for first in range(0, rows, SOURCE_ROWS):
            ids = np.arange(first, min(rows, first + SOURCE_ROWS))
            drawn = rng.zipf(1.3, (len(ids), WORDS_OF_A_TEXT)) % len(WORDS)
            words = pa.FixedSizeListArray.from_arrays(WORDS.take(pa.array(drawn.ravel())), WORDS_OF_A_TEXT)
            texts = pc.binary_join(words.cast(pa.list_(pa.string())), " ")
            writer.write_table(pa.table([ids, rng.random(len(ids)), ids * 100 // rows, texts], schema=schema))
    work = {"source": str(folder / "items.parquet"), "text": "text", "id": "id", "keep": keep}
    work |= {"task": "benchmarks.noise:Noise", "params": {"dims": dims, "dtype": dtype}}
    runs.start(make_spec(work, {"shard_bytes": "4MB"}), folder / "run", engine=InProcessEngine())
    return folder / "run"
