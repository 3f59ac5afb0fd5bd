"""A GPU that is lost in mid-epoch: its worker ends, and another goes on from the checkpoint; alone or in a gang."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shardmill import api
from shardmill.devices import Device
from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.testing import InProcessEngine
from shardmill.worker import Worker
from tests.support.libraries import needed
from tests.support.training import TRAINING, a_model, topic_pairs
from tests.support.waiting import PATIENCE_S, wait_for

needed("torch")
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(TRAINING)
CPU = Device("cpu", "cpu", 1)
STEPS = 40


def _work(url: str, name: str, loses_at: int | None) -> None:
    """One worker, whose device fails at a step as CUDA says it: anywhere, and later than the kernel at fault."""
    if loses_at is not None:
        import torch

        steps, step = iter(range(loses_at)), torch.optim.AdamW.step

        def fail(self: Any, *args: Any) -> Any:
            if next(steps, None) is None:
                raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with …")
            return step(self, *args)

        torch.optim.AdamW.step = fail  # type: ignore[method-assign,assignment]
    Worker(Ledger(url), device=CPU, name=name).work()


def _start(run: Path, name: str, loses_at: int | None = None) -> Any:
    made = processes.Process(target=_work, args=(str(run), name, loses_at))
    made.start()
    return made


def _plan(tmp_path: Path, source: Path) -> tuple[Path, Run]:
    """A run to be worked on, and the same one undisturbed."""
    params = {"model": str(a_model(tmp_path / "model")), "columns": "question,passage", "batch": 8, "epochs": 5}
    params |= {"held_out": 0.0, "evaluate_every": 1, "checkpoint_every": 4}
    work = {"source": str(source), "task": "train", "params": params}
    whole = api.carry_out(work, {}, tmp_path / "whole", engine=InProcessEngine())
    api.lay_out(work, {"workers": 2, "min_workers": 1, "lease_s": 4.0}, tmp_path / "run")
    return tmp_path / "run", whole


def _losses(run: Run) -> list[float]:
    return [point["loss"] for point in json.loads(run.table()["curve"].to_pylist()[0]) if "loss" in point]


def test_the_next_worker_goes_on_from_the_checkpoint(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    run, whole = _plan(tmp_path, write_jsonl(topic_pairs(64)))
    unlucky = _start(run, "unlucky", loses_at=10)
    unlucky.join(PATIENCE_S)
    assert unlucky.exitcode == 1
    ledger = Ledger(run)
    ledger.plan()
    kept = ledger.checkpoints.find(0)
    assert kept is not None
    assert kept.step == 8
    assert not ledger.commits.shards()
    heir = _start(run, "heir")
    heir.join(PATIENCE_S)
    assert heir.exitcode == 0
    assert _losses(Run(run)) == _losses(whole)
    assert (run / "model/model.safetensors").read_bytes() == (tmp_path / "whole/model/model.safetensors").read_bytes()


def test_the_rest_of_a_gang_goes_on(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    run, whole = _plan(tmp_path, write_jsonl(topic_pairs(64)))
    ledger = Ledger(run)
    ledger.plan()
    ledger.put_execution({**ledger.execution(), "min_workers": 2})
    first = _start(run, "first")
    wait_for(lambda: ledger.gangs.find(0) is not None)
    unlucky = _start(run, "unlucky", loses_at=10)
    unlucky.join(PATIENCE_S)
    assert unlucky.exitcode == 1
    heir = _start(run, "heir")
    for each in (first, heir):
        each.join(PATIENCE_S)
        assert each.exitcode == 0
    assert not list(Run(run).errors())
    assert len(_losses(Run(run))) == STEPS
    np.testing.assert_allclose(_losses(Run(run)), _losses(whole), atol=1e-3)
