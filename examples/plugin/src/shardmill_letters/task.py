"""The task of `count`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.tasks.base import Agreement, Output, Prepared, Task
from shardmill.tasks.params import read_params
from shardmill_letters.options import CountParams


class CountTask(Task):
    """One row per item: the number of its words."""

    output = pa.schema([pa.field("words", pa.int64())])
    batch_budget = 1 << 20

    def __init__(self, **params: Any) -> None:
        self.params = read_params(CountParams, params, "count")

    def fingerprint(self) -> dict[str, str]:
        return {"rules": "1"}

    def open(self, device: Any) -> None:
        pass

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        return Prepared(list(texts), np.array([len(text or "") + 1 for text in texts], np.int64))

    def run(self, inputs: Sequence[str]) -> Output:
        counts = [sum(len(word) >= self.params.shortest for word in text.split()) for text in inputs]
        return Output(pa.record_batch([pa.array(counts, pa.int64())], schema=self.output))

    def agreement(self, precision: str) -> Agreement:
        return "exact"
