"""A gang on every engine that can have one: a killed worker is replaced, and the next group goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill import run as runs
from shardmill.ledger import Ledger
from tests.support.gang_site import STEPS, GangSite
from tests.support.waiting import PATIENCE_S, wait_for


def _place(engine: str, ask: Callable[[str], Any]) -> dict[str, Any]:
    if engine == "slurm":
        ask("slurm_nodes")
        return {"engine": "slurm", "engine_options": {"partition": "gpu"}}
    if engine == "ray":
        address = ask("ray_nodes").address
        return {"engine": "ray", "engine_options": {"address": address, "num_cpus": "1"}}
    return {}


@pytest.mark.parametrize(
    "engine", ["local", *(pytest.param(each, marks=pytest.mark.services) for each in ("slurm", "ray"))]
)
def test_a_killed_member_is_replaced(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    site = GangSite(tmp_path)
    place = _place(engine, request.getfixturevalue)
    spec = site.spec(STEPS, device="cpu", workers="2:2", **place)
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
