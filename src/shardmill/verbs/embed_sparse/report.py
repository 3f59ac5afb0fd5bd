"""Sparse vectors in a report: how many words a text has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc

from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import read_rows
from shardmill.run.reports.shape import Chart, Section
from shardmill.run.status.state import Status
from shardmill.verbs.embed_sparse.rows import SPARSE

_BINS = 10


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The words of the rows of a finished run: how many a row has, and how many rows have none; failed rows aside.

    `counts` are rows by their number of words, in tenths of `most`.
    """

    items: int
    without: int
    mean: float
    most: int
    counts: tuple[int, ...]

    name: ClassVar[str] = "sparsity"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def headline(self) -> tuple[tuple[str, str], ...]:
        return ()

    def section(self) -> Section:
        facts = (
            ("items", f"{self.items:,}"),
            *([("without a word", f"{self.without:,}")] if self.without else []),
            ("words per item", f"{self.mean:,.1f}, {self.most:,} at most"),
        )
        places = tuple(f"{self.most * place // _BINS:,}" for place in range(_BINS))
        chart = Chart(
            "items by their number of words, each bar from one number on",
            tuple(map(float, self.counts)),
            places,
            bars=True,
        )
        return Section("Sparse vectors", facts, (), (chart,) if self.counts else ())


def read_sparse(ledger: Ledger, plan: Plan, status: Status) -> Sparsity | None:
    """Count the words of all rows; None if the run is not complete, or its rows are in a table."""
    if status.state != "complete" or not plan.shards or plan.work.to is not None:
        return None
    lengths = [
        pc.list_value_length(batch.column(SPARSE)).drop_null().to_numpy(zero_copy_only=False)
        for batch in read_rows(ledger, plan, [SPARSE])
    ]
    every = np.concatenate([np.zeros(0, np.int64), *lengths])
    most = int(every.max(initial=0))
    counts = np.histogram(every, _BINS, (0, most))[0] if most else ()
    mean = float(every.mean()) if len(every) else 0.0
    return Sparsity(len(every), int((every == 0).sum()), round(mean, 3), most, tuple(map(int, counts)))
