"""What the command line says when a model is trained."""

from __future__ import annotations

import json

from shardmill.core.console import count, print_json, say
from shardmill.core.dialect import shell_command
from shardmill.run.outcome import is_detached
from shardmill.run.request import Request
from shardmill.run.result import Run
from shardmill.tasks.params import read_params
from shardmill.verbs.train.params import TrainParams


def show_training(request: Request, run: Run) -> None:
    """Print the loss, the metric before and after, and how to use the model."""
    if is_detached(run, run.status()):
        return
    row = run.table().to_pylist()[0]
    if request.options.as_json:
        print_json({**row, "curve": json.loads(row["curve"]), "model": f"{run.ledger.url}/model"})
        return
    left = f", {count(row['unusable'], 'row')} left out" if row["unusable"] else ""
    say(f"{count(row['trained_on'], 'item')} in {count(row['steps'], 'step')}{left}; loss {row['loss']:.4f}.")
    if row["best"] is not None:
        options = read_params(TrainParams, run.plan.work.params, "train")
        share = options.describe_held_out(row["trained_on"], row["held_out"])
        said = f"{row['metric']} on {count(row['held_out'], 'held-out item')} ({share})"
        say(f"{said}: {row['before']:.4f} -> {row['best']:.4f} (step {row['best_step']:,}).")
    elif run.plan.work.params.get("held_out") != 0:
        say("No item was held out, so the model was not measured: there are too few, or all are of one group.")
    model = f"{run.ledger.url}/model"
    say(f"Next: {shell_command('embed', 'SOURCE', '--text', 'FIELD', '--model', model, '--out', 'RUN')}")
