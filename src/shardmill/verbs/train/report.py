"""A training run in a report: what was learnt, how good it was before and after, and its curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardmill.core.console import count
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.run.reports.shape import Grid, Points, Section
from shardmill.run.status.state import Status
from shardmill.tasks.params import read_params
from shardmill.verbs.train.params import TrainParams

_MOST_STEPS = 40


@dataclass(frozen=True, slots=True)
class TrainingAccount:
    """The curve of a training run so far, with loss and figure by step, and its row of the result once it has one."""

    curve: tuple[Mapping[str, float], ...]
    metric: str
    row: Mapping[str, Any] | None = None
    held_out: str = ""

    name: ClassVar[str] = "training"

    def headline(self) -> tuple[tuple[str, str], ...]:
        return training_figures(self)

    def section(self) -> Section:
        return describe_training(self)

    def to_json(self) -> dict[str, Any]:
        row = {name: value for name, value in (self.row or {}).items() if name not in ("row", "curve")}
        return {**row, "metric": self.metric, "curve": [dict(each) for each in self.curve]}


def read_training(ledger: Ledger, plan: Plan, status: Status) -> TrainingAccount | None:
    """What a training run says of itself; None if it has said nothing yet."""
    if status.state == "complete":
        from shardmill.results.merge import read_rows

        rows = [row for batch in read_rows(ledger, plan) for row in batch.to_pylist()]
        if rows and rows[0]["curve"]:
            options = read_params(TrainParams, plan.work.params, "train")
            share = options.describe_held_out(rows[0]["trained_on"], rows[0]["held_out"])
            return TrainingAccount(tuple(json.loads(rows[0]["curve"])), rows[0]["metric"], rows[0], share)
    points = ledger.reports.read(0).points
    metric = next((name for p in points for name in p.figures if name not in ("loss", "epoch")), "")
    names = {"loss": "loss", metric: "figure"}
    curve = tuple(
        {"step": p.step, **{names[k]: v for k, v in p.figures.items() if k in names and v is not None}} for p in points
    )
    return TrainingAccount(curve, metric) if curve else None


def describe_training(training: TrainingAccount) -> Section:
    curve, metric, row = training.curve, training.metric, training.row
    charts = (_points("mean loss by step", curve, "loss"), _points(f"{metric} by step", curve, "figure"))
    facts: tuple[tuple[str, str], ...] = ()
    if row is not None:
        left = f"; {count(row['unusable'], 'row')} of the source left out" if row["unusable"] else ""
        facts = (("trained on", f"{count(row['trained_on'], 'item')} in {count(row['steps'], 'step')}{left}"),)
        if row["best"] is not None:
            facts += (
                (f"{metric} before", f"{row['before']:.4f}"),
                (f"{metric} after", f"{row['best']:.4f}, at step {row['best_step']:,}, whose weights are the result"),
                ("held out", f"{count(row['held_out'], 'item')}, {training.held_out}"),
            )
    return Section(
        "Training",
        facts=facts,
        grids=(_grid(curve, metric),),
        points=tuple(chart for chart in charts if len(chart.places) > 1),
        notes=() if row is not None else (f"Not complete: at step {curve[-1]['step']:,.0f}.",),
    )


def training_figures(training: TrainingAccount) -> tuple[tuple[str, str], ...]:
    """What most readers want to know of a training run, with names."""
    row = training.row
    if row is None:
        return (("step", f"{training.curve[-1]['step']:,.0f}"),)
    better = () if row["best"] is None else ((training.metric, f"{row['before']:.4f} → {row['best']:.4f}"),)
    return (("items", f"{row['trained_on']:,}"), ("steps", f"{row['steps']:,}"), *better)


def _points(title: str, curve: Sequence[Mapping[str, float]], name: str) -> Points:
    found = [(float(each["step"]), each[name]) for each in curve if name in each]
    places, values = tuple(step for step, _ in found), tuple(value for _, value in found)
    return Points(title, places, values, values)


def _grid(curve: Sequence[Mapping[str, float]], metric: str) -> Grid:
    every = -(-len(curve) // _MOST_STEPS)
    shown = [each for i, each in enumerate(curve) if i % every == 0 or i == len(curve) - 1]
    rows = tuple((f"{each['step']:,.0f}", _number(each.get("loss")), _number(each.get("figure"))) for each in shown)
    return Grid(("step", "mean loss", metric or "held out"), rows, (0, 1, 2))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
