"""Our own engines run through the suite that a plug-in's tests call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardmill.testing import check_engine
from tests.support.sshd import TestHost

pytestmark = pytest.mark.services
CHECKS = 15


def test_ssh(hosts: list[TestHost], tmp_path: Path) -> None:
    listed = tmp_path / "cluster.toml"
    listed.write_text("\n".join(host.entry() for host in hosts))
    assert check_engine({"engine": "ssh", "engine_options": {"hosts": str(listed)}}, tmp_path) == CHECKS


@pytest.mark.usefixtures("slurm_nodes")
def test_slurm(tmp_path: Path) -> None:
    execution = {"engine": "slurm", "engine_options": {"partition": "gpu"}, "workers": 2}
    assert check_engine(execution, tmp_path) == CHECKS


def test_ray(ray_nodes: Any, tmp_path: Path) -> None:
    options = {"address": ray_nodes.address, "num_cpus": "1"}
    execution = {"engine": "ray", "device": "cpu", "engine_options": options, "workers": 2}
    assert check_engine(execution, tmp_path) == CHECKS
