"""A GPU or its process is lost in mid-epoch: another goes on from the checkpoint; alone or in a gang."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.run.carrying import carry_out, prepare_work
from shardmill.tasks import gang
from shardmill.testing import InProcessEngine
from shardmill.worker import Worker
from tests.support.forking import Forking
from tests.support.libraries import needed
from tests.support.training import CPU, GPU, TRAINING, a_model, share_gpu, topic_pairs
from tests.support.waiting import PATIENCE_S, wait_for

needed("torch")
processes = Forking(TRAINING)
STEPS = 40


def _lose_device() -> None:
    """As CUDA says it: anywhere, and later than the kernel at fault."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with …")


def _be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _be_paused() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _work(url: str, device: Device, name: str, fate: Callable[[], None] | None) -> None:
    """One worker, whose fate comes in its eleventh step, while the others of its gang wait for its gradients."""
    share_gpu(name)
    # A paused process is not waited for longer than this.
    gang._SHORTEST_S = 8.0
    if fate is not None:
        from shardmill.verbs.train.loop import TrainingLoop

        steps, update = iter(range(10)), TrainingLoop._update

        def meet_fate(self: Any) -> None:
            if next(steps, None) is None:
                fate()
            update(self)

        TrainingLoop._update = meet_fate  # type: ignore[method-assign]
    Worker(Ledger(url), device=device, name=name).work()


def _start(run: Path, name: str, fate: Callable[[], None] | None = None, device: Device = CPU) -> Any:
    made = processes.Process(target=_work, args=(str(run), device, name, fate))
    made.start()
    return made


def _plan(tmp_path: Path, source: Path) -> tuple[Path, Run]:
    """A run to be worked on, and the same one undisturbed."""
    params = {"model": str(a_model(tmp_path / "model")), "columns": "question,passage", "batch": 8, "epochs": 5}
    params |= {"held_out": 0.0, "evaluate_every": 1, "checkpoint_every": 4}
    work = {"source": str(source), "task": "train", "params": params}
    whole = carry_out(work, {"device": "cpu"}, tmp_path / "whole", engine=InProcessEngine())
    prepare_work(work, {"workers": 2, "min_workers": 1, "lease_s": 4.0, "device": "cpu"}, tmp_path / "run")
    return tmp_path / "run", whole


def _losses(run: Run) -> list[float]:
    return [point["loss"] for point in json.loads(run.table()["curve"].to_pylist()[0]) if "loss" in point]


def test_the_next_worker_goes_on_from_the_checkpoint(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    run, whole = _plan(tmp_path, write_jsonl(topic_pairs(64)))
    unlucky = _start(run, "unlucky", _lose_device)
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


@pytest.mark.parametrize(
    ("device", "fate"),
    [
        pytest.param(CPU, _lose_device, id="gloo-device"),
        pytest.param(GPU, _lose_device, id="nccl-device", marks=pytest.mark.gpu),
        pytest.param(GPU, _be_killed, id="nccl-killed", marks=pytest.mark.gpu),
        pytest.param(GPU, _be_paused, id="nccl-paused", marks=pytest.mark.gpu),
    ],
)
def test_the_rest_of_a_gang_goes_on(
    device: Device, fate: Callable[[], None], tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    run, whole = _plan(tmp_path, write_jsonl(topic_pairs(64)))
    ledger = Ledger(run)
    ledger.plan()
    ledger.put_execution({**ledger.execution(), "min_workers": 2})
    first = _start(run, "first", device=device)
    wait_for(lambda: ledger.gangs.find(0) is not None)
    unlucky = _start(run, "unlucky", fate, device)
    if fate is _be_paused:
        wait_for(lambda: psutil.Process(unlucky.pid).status() == psutil.STATUS_STOPPED)
    else:
        unlucky.join(PATIENCE_S)
        assert unlucky.exitcode == (1 if fate is _lose_device else -signal.SIGKILL)
    heir = _start(run, "heir", device=device)
    for each in (first, heir):
        each.join(PATIENCE_S)
        assert each.exitcode == 0
    if fate is _be_paused:
        os.kill(unlucky.pid, signal.SIGCONT)
        unlucky.join(PATIENCE_S)
        assert unlucky.exitcode == 0
    assert not list(Run(run).errors())
    assert len(_losses(Run(run))) == STEPS
    np.testing.assert_allclose(_losses(Run(run)), _losses(whole), atol=1e-3)
