"""A training run killed on one, on two and on three processes in turn: the same items, the same losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.run.carrying import carry_out, prepare_work
from shardmill.testing import InProcessEngine, crash_at
from shardmill.worker import Worker
from tests.support.forking import Forking
from tests.support.libraries import needed
from tests.support.training import CPU, GPU, TRAINING, a_model, share_gpu, topic_pairs
from tests.support.waiting import PATIENCE_S, wait_for

needed("torch")
processes = Forking(TRAINING)
BACKENDS = [pytest.param(CPU, id="gloo"), pytest.param(GPU, id="nccl", marks=pytest.mark.gpu)]


def _work(url: str, device: Device, name: str, after: int | None) -> None:
    """One worker; killed at the given checkpoint if it leads."""
    share_gpu(name)
    on_step: Any = (lambda step, shard: None) if after is None else crash_at("checkpointed", after)
    Worker(Ledger(url), device=device, name=name, on_step=on_step).work()


def _start(run: Path, device: Device, count: int, after: int | None) -> list[Any]:
    ledger = Ledger(run)
    ledger.plan()
    ledger.put_execution({**ledger.execution(), "min_workers": count})
    names = [f"{count}-{n}-{after}" for n in range(count)]
    made = [processes.Process(target=_work, args=(str(run), device, name, after)) for name in names]
    for each in made:
        each.start()
    return made


@pytest.mark.parametrize("device", BACKENDS)
def test_kills_on_one_two_and_three_processes(device: Device, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    model, source = a_model(tmp_path / "model"), write_jsonl(topic_pairs(60))
    params = {"model": str(model), "columns": "question,passage", "batch": 8, "epochs": 8, "learning_rate": 1e-3}
    params |= {"held_out": 0.0, "evaluate_every": 1, "checkpoint_every": 3}
    work = {"source": str(source), "task": "train", "params": params}
    whole = carry_out(work, {"device": "cpu"}, tmp_path / "whole", engine=InProcessEngine())

    run = tmp_path / "killed"
    prepare_work(work, {"workers": 3, "min_workers": 1, "lease_s": 5.0, "device": "cpu"}, run)
    for count in (1, 2, 3):
        workers = _start(run, device, count, after=4)
        wait_for(lambda: not all(each.is_alive() for each in workers))  # noqa: B023
        for each in workers:
            each.kill()
            each.join(PATIENCE_S)
    kept = Ledger(run)
    kept.plan()
    found = kept.checkpoints.find(0)
    assert found is not None
    assert 24 < found.step < 64
    for each in _start(run, device, 3, after=None):
        each.join(PATIENCE_S)
        assert each.exitcode == 0
    curves = [
        [point["loss"] for point in json.loads(done.table()["curve"].to_pylist()[0]) if "loss" in point]
        for done in (whole, Run(run))
    ]
    assert len(curves[0]) == 64
    np.testing.assert_allclose(curves[1], curves[0], atol=1e-3)
    assert (run / "model" / "model.safetensors").exists()
