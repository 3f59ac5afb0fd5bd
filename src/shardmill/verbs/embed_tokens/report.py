"""Token vectors in a report: how many a text has, and what they cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from shardmill.core.token_vectors import TokenColumn
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import part_schema, read_rows
from shardmill.run.reports.shape import Chart, Section
from shardmill.run.status.state import Status
from shardmill.verbs.embed_tokens.rows import COUNT

_BINS = 10


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The vectors of the rows of a finished run: how many a row has, and how many bytes one takes; failed rows aside.

    `counts` are rows by their number of vectors, in tenths of `most`.
    """

    items: int
    vectors: int
    vector_bytes: int
    mean: float
    most: int
    counts: tuple[int, ...]

    name: ClassVar[str] = "token_vectors"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def headline(self) -> tuple[tuple[str, str], ...]:
        return ()

    def section(self) -> Section:
        facts = (
            ("items", f"{self.items:,}"),
            ("vectors", f"{self.vectors:,} of {self.vector_bytes:,} bytes"),
            ("vectors per item", f"{self.mean:,.1f}, {self.most:,} at most"),
        )
        places = tuple(f"{self.most * place // _BINS:,}" for place in range(_BINS))
        chart = Chart(
            "items by their number of vectors, each bar from one number on",
            tuple(map(float, self.counts)),
            places,
            bars=True,
        )
        return Section("Token vectors", facts, (), (chart,) if self.counts else ())


def read_token_counts(ledger: Ledger, plan: Plan, status: Status) -> TokenCounts | None:
    """Count the vectors of all rows; None if the run is not complete, or its rows are in a table."""
    if status.state != "complete" or not plan.shards or plan.work.to is not None:
        return None
    column = TokenColumn.find(part_schema(ledger, plan))
    counted = [
        batch.column(COUNT).drop_null().to_numpy(zero_copy_only=False) for batch in read_rows(ledger, plan, [COUNT])
    ]
    every = np.concatenate([np.zeros(0, np.int64), *counted])
    most = int(every.max(initial=0))
    counts = np.histogram(every, _BINS, (0, most))[0] if most else ()
    mean = round(float(every.mean()), 3) if len(every) else 0.0
    size = 0 if column is None else column.vector_bytes
    return TokenCounts(len(every), int(every.sum()), size, mean, most, tuple(map(int, counts)))
