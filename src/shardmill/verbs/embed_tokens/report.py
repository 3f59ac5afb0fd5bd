"""Token vectors in a report: how many a text has, and what they cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from shardmill.core.token_vectors import TokenColumn
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import part_schema, read_rows
from shardmill.run.reports.counts import Counts
from shardmill.run.reports.shape import Section
from shardmill.run.status.state import Status
from shardmill.verbs.embed_tokens.rows import COUNT


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The vectors of the rows of a finished run: how many a row has, and the bytes of each; failed rows aside."""

    by_item: Counts
    vectors: int
    vector_bytes: int

    name: ClassVar[str] = "token_vectors"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.by_item), "vectors": self.vectors, "vector_bytes": self.vector_bytes}

    def headline(self) -> tuple[tuple[str, str], ...]:
        return ()

    def section(self) -> Section:
        facts = (
            ("items", f"{self.by_item.items:,}"),
            ("vectors", f"{self.vectors:,} of {self.vector_bytes:,} bytes"),
            ("vectors per item", self.by_item.describe()),
        )
        return Section("Token vectors", facts, (), self.by_item.chart("vectors"))


def read_token_counts(ledger: Ledger, plan: Plan, status: Status) -> TokenCounts | None:
    """Count the vectors of all rows; None if the run is not complete, or its rows are in a table."""
    if status.state != "complete" or not plan.shards or plan.work.to is not None:
        return None
    column = TokenColumn.find(part_schema(ledger, plan))
    counted = [
        batch.column(COUNT).drop_null().to_numpy(zero_copy_only=False) for batch in read_rows(ledger, plan, [COUNT])
    ]
    size = 0 if column is None else column.vector_bytes
    return TokenCounts(Counts.of(counted), sum(int(each.sum()) for each in counted), size)
