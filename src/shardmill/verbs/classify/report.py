"""Labels in a report: how many items have each, and with which scores."""

from __future__ import annotations

from collections import Counter
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
from shardmill.verbs.classify.rows import LABEL, LABELS, SCORE, SPANS

_SHOWN, _BINS = 50, 10


@dataclass(frozen=True, slots=True)
class Classes:
    """The labels of a finished run: how often each was given, with the mean of its scores, the most frequent first.

    `without` counts items that have none. `scores` are counts of scores by tenths; a number that is no probability has
    `lowest`, `mean` and `highest` instead.
    """

    items: int
    without: int
    labels: dict[str, tuple[int, float]]
    scores: tuple[int, ...]
    lowest: float
    mean: float
    highest: float

    name: ClassVar[str] = "classes"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def headline(self) -> tuple[tuple[str, str], ...]:
        return ()

    def section(self) -> Section:
        return describe_classes(self)


def read_classes(ledger: Ledger, plan: Plan, status: Status) -> Classes | None:
    """Read all labels; None if the run is not complete, or its rows are in a table."""
    if status.state != "complete" or not plan.shards or plan.work.to is not None:
        return None
    names = part_schema(ledger, plan).names
    # Of lists with labels that an item has not, the best of each item is counted.
    lists = next((n for n in (SPANS, LABELS) if n in names and not (n == LABELS and _is_whole(plan))), "")
    counts, sums = Counter[str](), Counter[str]()
    bins, ends = np.zeros(_BINS, np.int64), [np.inf, 0.0, -np.inf]
    items = without = numbers = 0
    for batch in read_rows(ledger, plan, [lists] if lists else [n for n in (LABEL, SCORE) if n in names]):
        items += batch.num_rows
        if lists:
            column = batch.column(lists)
            without += int((pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False) == 0).sum())
            each = pc.list_flatten(column)
            labels, scores = (pc.struct_field(each, name) for name in (LABEL, SCORE))
        else:
            scores = batch.column(SCORE)
            without += scores.null_count
            labels = batch.column(LABEL) if LABEL in names else pa.nulls(len(scores), pa.string())
        seen = scores.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
        if LABEL in names or lists:
            bins += np.histogram(seen, _BINS, (0.0, 1.0))[0]
            table = pa.table({LABEL: labels, SCORE: scores}).drop_null().group_by(LABEL)
            for row in table.aggregate([(SCORE, "count"), (SCORE, "sum")]).to_pylist():
                counts[row[LABEL]] += row[f"{SCORE}_count"]
                sums[row[LABEL]] += row[f"{SCORE}_sum"]
        elif len(seen):
            numbers += len(seen)
            ends = [min(ends[0], float(seen.min())), ends[1] + float(seen.sum()), max(ends[2], float(seen.max()))]
    found = {label: (n, sums[label] / n) for label, n in counts.most_common()}
    lowest, mean, highest = (ends[0], ends[1] / numbers, ends[2]) if numbers else (0.0, 0.0, 0.0)
    return Classes(items, without, found, tuple(bins.tolist()) if found else (), lowest, mean, highest)


def _is_whole(plan: Plan) -> bool:
    return bool(plan.work.params.get("all_labels") or plan.work.params.get("top_k"))


def describe_classes(made: Classes) -> Section:
    """What matters of labels, as a section."""
    facts = [("items", f"{made.items:,}"), *([("without a label", f"{made.without:,}")] if made.without else [])]
    if not made.labels:
        if made.highest > made.lowest:
            facts += [("scores", f"{made.lowest:.4g} to {made.highest:.4g}, mean {made.mean:.4g}")]
        return Section("What was found", tuple(facts))
    facts.append(("labels", f"{len(made.labels):,}"))
    rows = tuple(
        (label, f"{n:,}", f"{n / max(1, made.items):.1%}", f"{mean:.3f}")
        for label, (n, mean) in list(made.labels.items())[:_SHOWN]
    )
    places = tuple(f"{place / _BINS:.1f}" for place in range(_BINS))
    chart = Chart(
        "labels by their score, each bar from one number on", tuple(map(float, made.scores)), places, bars=True
    )
    left = len(made.labels) - _SHOWN
    notes = (f"And {left:,} more labels.",) if left > 0 else ()
    grid = Grid(("label", "times", "per item", "mean score"), rows, (1, 2, 3))
    return Section("What was found", tuple(facts), (grid,), (chart,), notes=notes)
