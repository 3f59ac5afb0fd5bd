"""What follows for a spec from the parameters of a training run: its source is one item, read by columns."""

from __future__ import annotations

from typing import Any

from shardmill.sources.base import ALL
from shardmill.tasks.params import read_params
from shardmill.verbs.train.params import TrainParams

COLUMNS = ("anchor", "positive")


def settle_train(work: dict[str, Any], execution: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both tables of a spec whose task is `train`, with what follows from the task's parameters.

    `max_errors` is about rows of the source here; of the one item, none may fail.
    """
    params = {"columns": COLUMNS, **work.get("params", {})}
    if limit := execution.get("max_errors"):
        params["max_errors"] = limit
    options = read_params(TrainParams, params, "train")
    wanted = (*options.columns, *filter(None, (options.label, options.split_by)))
    settled = {
        **work,
        "text": options.columns[0],
        "fields": tuple(dict.fromkeys(wanted)),
        "group_by": ALL,
        "params": {**params, "columns": list(options.columns)},
    }
    others = {name: value for name, value in execution.items() if name != "max_errors"}
    # SSH hosts say themselves how many workers they have.
    return settled, others if others.get("engine") == "ssh" else {"workers": 1, **others}
