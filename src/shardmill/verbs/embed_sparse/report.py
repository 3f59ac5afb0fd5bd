"""Sparse vectors in a report: how many words a text has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import pyarrow.compute as pc

from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import read_rows
from shardmill.run.reports.counts import Counts
from shardmill.run.reports.shape import Section
from shardmill.run.status.state import Status
from shardmill.verbs.embed_sparse.rows import SPARSE


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The words of the rows of a finished run: how many a row has, and how many rows have none; failed rows aside."""

    words: Counts
    without: int

    name: ClassVar[str] = "sparsity"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.words), "without": self.without}

    def headline(self) -> tuple[tuple[str, str], ...]:
        return ()

    def section(self) -> Section:
        facts = (
            ("items", f"{self.words.items:,}"),
            *([("without a word", f"{self.without:,}")] if self.without else []),
            ("words per item", self.words.describe()),
        )
        return Section("Sparse vectors", facts, (), self.words.chart("words"))


def read_sparse(ledger: Ledger, plan: Plan, status: Status) -> Sparsity | None:
    """Count the words of all rows; None if the run is not complete, or its rows are in a table."""
    if status.state != "complete" or not plan.shards or plan.work.to is not None:
        return None
    lengths = [
        pc.list_value_length(batch.column(SPARSE)).drop_null().to_numpy(zero_copy_only=False)
        for batch in read_rows(ledger, plan, [SPARSE])
    ]
    return Sparsity(Counts.of(lengths), sum(int((each == 0).sum()) for each in lengths))
