"""One study over engines, killed on each: begun on SSH hosts without a common disk, then on Slurm, ended by Ray."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from shardmill.engines import open_engine
from shardmill.ledger import Ledger
from shardmill.run import Run, start
from shardmill.run.planner import make_plan
from tests.support import engine_contract as contract
from tests.support.libraries import needed
from tests.support.slurm_cluster import SlurmCluster
from tests.support.sshd import TestHost
from tests.support.studies import outcomes, run_study, study_spec
from tests.support.waiting import wait_for

pytestmark = pytest.mark.services
needed("optuna")

WORK = {"pruner": {"name": "median", "n_startup_trials": 3}, "trials": 20}


def _begin(engine: dict[str, Any], folder: Path) -> None:
    """Run some more trials, kill a worker, and stop."""
    spec = study_spec("stepwise_slowly", {"device": "cpu", "lease_s": 10, "workers": 2, **engine}, **WORK)
    ledger = Ledger(folder / "run")
    placed = open_engine(spec.execution)
    ledger.create(make_plan(spec, placed.devices))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    before = len(ledger.commits.shards())
    placement = placed.start(ledger.url)
    try:
        first, *_ = wait_for(lambda: placement.poll() and contract.live_workers(ledger))
        os.kill(first["pid"], signal.SIGKILL)
        wait_for(lambda: len(ledger.commits.shards()) >= before + 2 or not placement.poll())
    finally:
        placement.stop()


def test_a_study_goes_from_ssh_to_slurm_to_ray(
    hosts: list[TestHost], slurm_nodes: SlurmCluster, ray_nodes: Any, tmp_path: Path
) -> None:
    listed = tmp_path / "cluster.toml"
    listed.write_text("\n".join(host.entry() for host in hosts))
    expected = outcomes(run_study(tmp_path / "here", "stepwise_slowly", **WORK))
    _begin({"engine": "ssh", "engine_options": {"hosts": str(listed)}, "workers": None}, tmp_path)
    _begin({"engine": "slurm", "engine_options": {"partition": "gpu"}}, tmp_path)
    slurm_nodes.cancel_all()
    ray = {"engine": "ray", "device": "cpu", "engine_options": {"address": ray_nodes.address, "num_cpus": "1"}}
    _begin(ray, tmp_path)
    start(study_spec("stepwise_slowly", {"lease_s": 10, "workers": 2, **ray}, **WORK), tmp_path / "run")
    assert outcomes(Run(tmp_path / "run")) == expected
