"""Gangs on engines: a killed process is replaced, and the next group goes on from the last checkpoint."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill import run as runs
from shardmill.core.errors import WorkerFailed
from shardmill.ledger import Ledger
from shardmill.run import Run
from tests.support.gang_site import STEPS, GangSite
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S, wait_for


def test_a_killed_member_is_replaced(tmp_path: Path) -> None:
    site = GangSite(tmp_path)
    spec = site.spec(STEPS, device="cpu", workers="2:2")
    killed: list[int] = []

    def kill() -> None:
        wait_for((tmp_path / "run/plan.json").exists)
        site.ledger = Ledger(tmp_path / "run")
        site.ledger.plan()
        group = site.wait_for_size(2)
        site.kill(group[1])
        killed.append(group[1].pid)
        site.wait_for_size(2, group[0].generation)
        (tmp_path / "enough").touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    runs.start(spec, tmp_path / "run")
    killer.join(PATIENCE_S)
    site.check(STEPS)
    assert len({part.pid for part in site.parts()}) == 3
    assert killed


def test_an_error_in_helpers_alone_ends_the_run_and_is_named(tmp_path: Path) -> None:
    spec = GangSite(tmp_path).spec(
        STEPS, task="FailingBeside", device="cpu", workers="2:2", lease_s=1.0, max_restarts=0
    )
    with pytest.raises(WorkerFailed, match="no such item here"):
        runs.start(spec, tmp_path / "run")


def _place(engine: str, ask: Callable[[str], Any]) -> list[str]:
    if engine == "slurm":
        ask("slurm_nodes")
        return ["--engine", "slurm", "--partition", "gpu"]
    return ["--engine", "ray", "--address", ask("ray_nodes").address, "--set", "num_cpus=1"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Run]:
    """A source, a model, and the run of both that nobody disturbs."""
    needed("torch")
    from tests.support.training import a_model, topic_pairs
    from tests.support.training_gang import train_undisturbed

    folder = tmp_path_factory.mktemp("training")
    source, model = folder / "pairs.jsonl", a_model(folder / "model")
    source.write_text("".join(json.dumps(row) + "\n" for row in topic_pairs(40)))
    return str(source), str(model), train_undisturbed(str(source), str(model), folder / "whole")


@pytest.mark.services
@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_a_training_run_loses_a_process(
    engine: str, undisturbed: tuple[str, str, Run], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from tests.support import training_gang as gang

    source, model, whole = undisturbed
    out = str(tmp_path / "run")
    place = _place(engine, request.getfixturevalue)
    started = gang.start_training(source, model, out, tmp_path / "spec.toml", *place)
    try:
        lost = gang.wait_for_pair(out, started)
        (member,) = [beat for beat in Ledger(out).workers.read() if beat["id"] == lost.members[1]]
        os.kill(member["pid"], signal.SIGKILL)
        run = gang.finish_training(out, started, lost)
    finally:
        started.kill()
    gang.assert_same_losses(run, whole)
