"""A training in a report: what it was trained on, what it learnt, and how it went."""

from __future__ import annotations

import json
from typing import Any

from shardmill.console import count
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.reports.shape import Chart, Grid, Section
from shardmill.results.merge import read_rows

_TASK = "train"
_COUNTS = ("steps", "trained_on", "held_out", "unusable")
_FIGURES = ("loss", "metric", "before", "best", "best_step", "curve")
_MOST_ROWS = 40


def read_training(ledger: Ledger, plan: Plan) -> dict[str, Any] | None:
    """The figures of a finished training, and its curve; None if the run is none."""
    if plan.work.task != _TASK:
        return None
    rows = [row for batch in read_rows(ledger, plan, [*_COUNTS, *_FIGURES]) for row in batch.to_pylist()]
    if not rows or rows[0]["curve"] is None:
        return None
    said: dict[str, Any] = {name: rows[0][name] for name in (*_COUNTS, *_FIGURES)}
    return {**said, "curve": json.loads(said["curve"])}


def describe_training(training: dict[str, Any]) -> Section:
    """What matters of a training, as a section."""
    metric, curve = training["metric"], training["curve"]
    facts = [
        ("trained on", f"{count(training['trained_on'], 'item')} in {count(training['steps'], 'step')}"),
        ("held out", count(training["held_out"], "item")),
        ("left out", f"{count(training['unusable'], 'row')} that cannot be trained on"),
        ("loss at the end", _number(training["loss"])),
    ]
    if training["best"] is not None:
        facts.append((f"{metric} before", _number(training["before"])))
        facts.append((f"{metric} of the result", f"{_number(training['best'])}, at step {training['best_step']:,}"))
    notes = () if training["held_out"] else ("Nothing was held out: the result are the last weights.",)
    charts = (_chart("loss by step", curve, "loss"), _chart(f"{metric} by step", curve, "figure"))
    step = max(1, -(-len(curve) // _MOST_ROWS))
    shown = [each for i, each in enumerate(curve) if i % step == 0 or each is curve[-1]]
    rows = tuple((f"{each['step']:,}", _number(each.get("loss")), _number(each.get("figure"))) for each in shown)
    return Section(
        "The training",
        facts=tuple(facts),
        charts=tuple(chart for chart in charts if chart is not None),
        grids=(Grid(("step", "loss", metric or "figure"), rows, (0, 1, 2)),) if rows else (),
        notes=notes,
    )


def _chart(title: str, curve: list[dict[str, float]], name: str) -> Chart | None:
    known = [each for each in curve if name in each]
    if len(known) < 2:
        return None
    return Chart(title, tuple(each[name] for each in known), tuple(f"{each['step']:,}" for each in known))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
