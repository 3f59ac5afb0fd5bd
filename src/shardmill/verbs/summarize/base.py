"""What both ways to summarize have in common: the parameters, and ROUGE against references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from shardmill.plugins.base import load_part
from shardmill.tasks.base import Task
from shardmill.tasks.params import read_params
from shardmill.verbs.summarize.params import SummarizeParams
from shardmill.verbs.summarize.rouge import Rouge, measure_rouge

NO_SENTENCE = "the text has no sentence with a letter or digit"
_METHODS = {
    "extractive": "shardmill.verbs.summarize.extractive:ExtractiveSummaries",
    "generative": "shardmill.verbs.summarize.generative:GenerativeSummaries",
}


class SummarizeTask(Task):
    """The `summarize` task. Made from parameters, it is the class of their `method`."""

    def __new__(cls, *_: Any, **params: Any) -> SummarizeTask:
        if cls is not SummarizeTask:
            return super().__new__(cls)
        # The parameters of an unknown method are refused by any class.
        method = "generative" if params.get("method") == "generative" else "extractive"
        kind: type[SummarizeTask] = load_part(_METHODS[method])
        return super().__new__(kind)

    def __init__(self, columns: pa.Schema, params: dict[str, Any]) -> None:
        self.params = read_params(SummarizeParams, params, "summarize")
        self.rouge = Rouge(self.params.rouge) if self.params.reference else None
        self.fields = (self.params.reference,) if self.params.reference else ()
        self.output = pa.schema([*columns, *(self.rouge.columns if self.rouge else ())])

    def check_rouge(self) -> None:
        """Refuse now, not after the first rows, if ROUGE is asked for and its package is missing."""
        if self.rouge is not None:
            self.rouge.check()

    def references(self, fields: pa.RecordBatch | None, rows: int) -> list[str | None]:
        """The reference of each text; None without one."""
        if fields is None or self.params.reference is None:
            return [None] * rows
        found: list[str | None] = fields.column(self.params.reference).cast(pa.string()).to_pylist()
        return found

    def measure(self, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        """Mean ROUGE with its 95 % interval, if there are references."""
        return measure_rouge(batches, self.rouge.names) if self.rouge is not None else {}
