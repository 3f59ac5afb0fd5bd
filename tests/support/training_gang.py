"""A training run of two processes, one of which is killed, beside one that nobody disturbs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np

from shardmill.ledger import Gang, Ledger
from shardmill.run import Run
from shardmill.run.carrying import carry_out
from shardmill.testing import InProcessEngine
from tests.support.cli import command
from tests.support.waiting import PATIENCE_S, wait_for

STEPS = 150
# A rate at which rounding does not grow: the losses of all steps are compared.
_OPTIONS = {"batch": 8, "epochs": STEPS // 5, "learning_rate": 1e-5, "held_out": 0.0, "evaluate_every": 1}
_LEASE_S = 5.0


def start_training(source: str, model: str, out: str, spec: Path, *words: str) -> subprocess.Popen[str]:
    """`shardmill train` as it is typed; begins with one worker, and a second one joins."""
    spec.write_text(f"[work]\n[execution]\nlease_s = {_LEASE_S}\n")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in {**_OPTIONS, "checkpoint_every": 5}.items()]
    given = ["--columns", "question,passage", "--model", model, "--workers", "1:2", "--device", "cpu", "--json"]
    return subprocess.Popen(
        command("train", source, "--spec", spec, *options, *given, *words, "--out", out),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_pair(out: str, started: subprocess.Popen[str]) -> Gang:
    """The group of two, once it has kept a checkpoint."""
    ledger = Ledger(out)

    def goes_on() -> bool:
        assert started.poll() is None, started.communicate()
        return True

    wait_for(lambda: goes_on() and ledger.find_plan())

    def group() -> Gang | None:
        found = ledger.gangs.find(0)
        return found if goes_on() and found is not None and len(found.members) == 2 else None

    def step() -> int:
        kept = ledger.checkpoints.find(0)
        return kept.step if kept is not None else 0

    wait_for(group)
    first = step()
    wait_for(lambda: goes_on() and step() > first)
    found = group()
    assert found is not None
    return found


def finish_training(out: str, started: subprocess.Popen[str], lost: Gang) -> Run:
    """Wait for the next group, which goes on without the lost process, and for the end."""
    ledger = Ledger(out)
    ledger.plan()

    def next_group() -> bool:
        found = ledger.gangs.find(0)
        return found is not None and found.generation > lost.generation and lost.members[1] not in found.members

    wait_for(next_group)
    said, err = started.communicate(timeout=2 * PATIENCE_S)
    assert started.returncode == 0, err
    assert json.loads(said)["steps"] == STEPS
    assert ledger.store.head("model/model.safetensors")
    return Run(out)


def train_undisturbed(source: str, model: str, out: Path) -> Run:
    params = {**_OPTIONS, "model": model, "columns": "question,passage"}
    return carry_out({"source": source, "task": "train", "params": params}, {}, out, engine=InProcessEngine())


def assert_same_losses(run: Run, other: Run) -> None:
    one, two = (
        [point["loss"] for point in json.loads(each.table()["curve"].to_pylist()[0]) if "loss" in point]
        for each in (run, other)
    )
    assert len(one) == STEPS
    np.testing.assert_allclose(one, two, atol=1e-3)
