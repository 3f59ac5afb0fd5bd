"""A training run whose worker is killed with -9 in mid-epoch: the same command's workers end with the same bits."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shardmill.ledger import Ledger
from shardmill.run import Run
from tests.support.cli import Said, command, process
from tests.support.libraries import needed
from tests.support.training import a_model, topic_pairs
from tests.support.waiting import PATIENCE_S, wait_for

needed("torch")


def _kept_beyond(run: Path, step: int) -> int:
    """The step of the checkpoint, once it is later than `step`."""

    def look() -> int | None:
        ledger = Ledger(run)
        if ledger.find_plan() is None:
            return None
        found = ledger.checkpoints.find(0)
        return found.step if found is not None and found.step > step else None

    return int(wait_for(look))


def _kill_worker(parent: int) -> None:
    for child in psutil.Process(parent).children(recursive=True):
        if "shardmill.worker" in " ".join(child.cmdline()):
            child.send_signal(signal.SIGKILL)
            child.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("device", "epochs"), [("cpu", 3), pytest.param("cuda", 20, marks=pytest.mark.gpu)], ids=["cpu", "gpu"]
)
def test_killed_twice_a_run_ends_with_the_same_bits(
    device: str, epochs: int, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    model, source = a_model(tmp_path / "model"), write_jsonl(topic_pairs(60))
    words: list[object] = ["train", source, "--columns", "question,passage", "--model", model, "--batch", 4]
    words += ["--epochs", epochs, "--learning-rate", 1e-3, "--checkpoint-every", 4, "--held-out", 0.2]
    words += ["--device", device]
    killed = subprocess.Popen(command(*words, "--out", tmp_path / "killed"), stderr=subprocess.PIPE, text=True)
    step = 0
    for _ in range(2):
        step = _kept_beyond(tmp_path / "killed", step)
        _kill_worker(killed.pid)
    _, err = killed.communicate(timeout=PATIENCE_S)
    assert killed.returncode == 0, err
    whole: Said = process(*words, "--out", tmp_path / "whole")
    assert whole.status == 0, whole.err
    runs = [Run(tmp_path / name) for name in ("killed", "whole")]
    assert runs[0].table().equals(runs[1].table())
    assert runs[0].verify().verified
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert weights[0] == weights[1]
    assert len({worker["id"] for worker in runs[0].status().workers}) >= 3
