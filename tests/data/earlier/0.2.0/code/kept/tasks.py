"""A task of a user, for `run`: the class of docs/tasks.md."""

import numpy as np
import pyarrow as pa

from shardmill.tasks.base import Output, Prepared, Task


class Lengths(Task):
    """Counts the words of each text."""

    output = pa.schema([pa.field("words", pa.int64())])
    batch_budget = 100

    def __init__(self, scale=1):
        self.scale = scale

    def fingerprint(self):
        return {"version": "1"}

    def open(self, device):
        pass

    def prepare(self, texts):
        return Prepared(texts, np.array([len(text.split()) if text else 0 for text in texts]))

    def run(self, inputs):
        column = pa.array([len(text.split()) * self.scale for text in inputs])
        return Output(pa.RecordBatch.from_arrays([column], schema=self.output))
