"""The scores of a run in its report: how many there are, and how they are spread."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import part_schema, read_rows
from shardmill.run.reports.shape import Chart, Grid, Section
from shardmill.run.status.state import Status
from shardmill.verbs.score.task import SCORE, SCORES

_BARS = 20
# As many are kept of each batch, evenly, for the bars of a report.
_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a finished run: how many, the range, the mean, and the counts of a sample in equal steps."""

    scores: int
    lowest: float
    mean: float
    highest: float
    counts: tuple[int, ...]

    name: ClassVar[str] = "scores"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def headline(self) -> tuple[tuple[str, str], ...]:
        return ()

    def section(self) -> Section:
        return describe_scores(self)


def read_scores(ledger: Ledger, plan: Plan, status: Status) -> Scores | None:
    """Read all scores; None if the run is not complete, or its rows are elsewhere."""
    if status.state != "complete" or not plan.shards or plan.work.to is not None:
        return None
    column = next((name for name in (SCORE, SCORES) if name in part_schema(ledger, plan).names), "")
    if not column:
        return None
    count, total, lowest, highest = 0, 0.0, np.inf, -np.inf
    sample: list[Any] = []
    for batch in read_rows(ledger, plan, [column]):
        scores = batch.column(column)
        flat = pc.list_flatten(scores) if pa.types.is_list(scores.type) else scores
        there = flat.drop_null().to_numpy(zero_copy_only=False)
        if not len(there):
            continue
        count, total = count + len(there), total + float(there.sum(dtype=np.float64))
        lowest, highest = min(lowest, float(there.min())), max(highest, float(there.max()))
        sample.append(there[:: -(-len(there) // _KEPT)])
    if not count:
        return None
    counts, _ = np.histogram(np.concatenate(sample), bins=_BARS, range=(lowest, highest))
    return Scores(count, lowest, total / count, highest, tuple(counts.tolist()))


def describe_scores(made: Scores) -> Section:
    """The scores of a run, as a section."""
    facts = (
        ("scores", f"{made.scores:,}"),
        ("from", f"{made.lowest:.4g}"),
        ("mean", f"{made.mean:.4g}"),
        ("to", f"{made.highest:.4g}"),
    )
    step = (made.highest - made.lowest) / len(made.counts)
    labels = tuple(f"{made.lowest + i * step:.3g}" for i in range(len(made.counts)))
    chart = Chart("scores, each bar from one number on", made.counts, labels, bars=True)
    total = max(1, sum(made.counts))
    rows = tuple((label, f"{n / total:.1%}") for label, n in zip(labels, made.counts, strict=True))
    return Section("What was scored", facts, (Grid(("from", "share"), rows, (0, 1)),), (chart,))
