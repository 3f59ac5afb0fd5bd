"""One cluster for all tests, and a namespace of its own for each file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.kube_cluster import KubeCluster, is_named, kube_cluster
from tests.support.services import unavailable
from tests.support.together import TestSite


@pytest.fixture(scope="session")
def cluster() -> Iterator[KubeCluster]:
    if not is_named():
        pytest.skip("no Kubernetes: set SHARDMILL_TEST_CLUSTER, or KUBECONFIG and SHARDMILL_TEST_IMAGE")
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(kube_cluster())
        except LookupError as error:
            unavailable(str(error))
            raise
        yield found


@pytest.fixture(scope="module")
def namespace(cluster: KubeCluster, s3_server: str) -> Iterator[str]:
    with cluster.namespace() as name:
        yield name


@pytest.fixture
def steady(cluster: KubeCluster) -> Iterator[None]:
    with cluster.steady():
        yield


@pytest.fixture(scope="module")
def site(cluster: KubeCluster, namespace: str, s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    return TestSite(cluster, namespace, s3_server, tmp_path_factory.mktemp("site"))
