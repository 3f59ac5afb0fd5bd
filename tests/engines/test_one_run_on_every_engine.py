"""One run over engines: begun on SSH hosts without a common disk, continued by Slurm, finished by Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardmill.run import Run, start
from tests.support import engine_contract as contract
from tests.support.slurm_cluster import SlurmCluster
from tests.support.sshd import TestHost

pytestmark = pytest.mark.services


def test_a_run_goes_from_ssh_to_slurm_to_ray(
    hosts: list[TestHost], slurm_nodes: SlurmCluster, ray_nodes: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    listed = tmp_path / "cluster.toml"
    listed.write_text("\n".join(host.entry() for host in hosts))
    ssh = {"engine": "ssh", "engine_options": {"hosts": str(listed)}, "workers": None}
    slurm = {"engine": "slurm", "engine_options": {"partition": "gpu"}}
    ray = {"engine": "ray", "device": "cpu", "engine_options": {"address": ray_nodes.address, "num_cpus": "1"}}
    contract.engines_take_turns([ssh, slurm, ray], folder)
    slurm_nodes.cancel_all()

    run = Run(folder / "run")
    assert len({c.worker.rpartition("-")[0] for c in run.ledger.commits.read().values()}) >= 3
    here = start(contract.make_spec(folder, contract.LOCALLY, 900), tmp_path / "here")
    merged = [each.merge(tmp_path / f"{i}.parquet") and tmp_path / f"{i}.parquet" for i, each in enumerate((run, here))]
    assert merged[0].read_bytes() == merged[1].read_bytes()
