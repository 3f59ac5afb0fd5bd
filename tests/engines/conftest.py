"""Clusters that are started once for all tests of engines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.ray_cluster import RAY_HEAD, RAY_NODE
from tests.support.services import unavailable
from tests.support.slurm_cluster import SlurmCluster, install, slurm_cluster
from tests.support.sshd import hosts

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

__all__ = ["hosts"]


@pytest.fixture(scope="package")
def slurm_nodes() -> Iterator[SlurmCluster]:
    """Two nodes, their configuration in the environment as a user of a cluster has it."""
    try:
        install()
        made = slurm_cluster()
        running = made.__enter__()
    except (LookupError, OSError) as error:
        unavailable(f"no Slurm: {error}")
        raise
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(running.conf))
        try:
            yield running
        finally:
            made.__exit__(None, None, None)


@pytest.fixture(scope="package")
def ray_nodes() -> Iterator[Cluster]:
    """Three nodes; processes that Ray starts find the package where the tests do."""
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        unavailable("ray is not installed: pip install ray")
        raise
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        made = Cluster(initialize_head=True, head_node_args=RAY_HEAD)
        for _ in range(2):
            made.add_node(**RAY_NODE)
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
