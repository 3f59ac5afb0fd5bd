"""Starts `augment`: its items are the ids of a range."""

from __future__ import annotations

from dataclasses import replace

from shardmill.augment.streams import parse_count
from shardmill.run.request import Request
from shardmill.run.result import Run
from shardmill.verbs.augment.params import EPOCH, PRESET, SEED


def start(request: Request) -> Run:
    """Write augmentation parameters for every item of a range."""
    options = request.options
    ids = f"range:{options.start_id}:{options.start_id + parse_count(options.num_samples)}"
    params = {"preset": PRESET, "seed": SEED, "epoch": EPOCH, **request.params}
    work = {"source": ids, "text": "sample_id", "id": "sample_id", "task": "augment", "params": params}
    return replace(request, work=work, execution={"device": "cpu", **request.execution}).carry_out()
