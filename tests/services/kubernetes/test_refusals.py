"""What cannot work on a cluster is said in a line with the next thing to try, and nothing is left behind."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardmill.engines.kubernetes.manifests import job_name, make_job
from shardmill.engines.kubernetes.options import read_pod_options
from shardmill.ledger import Ledger
from shardmill.spec import Execution
from tests.services.kubernetes.test_rights import config_of
from tests.support.cli import Said, assert_told, process
from tests.support.kube_cluster import KubeCluster
from tests.support.kube_runs import on_pods, put_source

pytestmark = pytest.mark.services

_SPEC = ("--task", "shardmill.testing:FakeTask", "--text", "text", "--id", "id")


@pytest.fixture(scope="module")
def source(s3_server: str) -> str:
    return put_source(s3_server, 100)


def submit(
    cluster: KubeCluster, namespace: str, source: str, place: str, config: Path | None = None, **options: Any
) -> Said:
    gpus = "gpus" in options
    given = on_pods(cluster, namespace, **options)["engine_options"]
    words = [f"--set={name}={value}" for name, value in given.items()]
    device = [] if gpus else ["--device", "cpu"]
    environment = {**os.environ, "KUBECONFIG": str(config)} if config else None
    return process(*("run", source, *_SPEC, "--engine", "kubernetes", *device, *words, "--out", place), env=environment)


def test_pods_that_cannot_start_are_named_with_the_reason(cluster: KubeCluster, namespace: str, source: str) -> None:
    """All at once: each takes as long as a cluster needs to find out."""
    wrong = {"AWS_ACCESS_KEY_ID": "wrong", "AWS_SECRET_ACCESS_KEY": "wrong", "AWS_ALLOW_HTTP": "true"}
    right = cluster.json("-n", namespace, "get", "secret", "bucket")["data"]
    keys = {"data": right, "stringData": wrong, "metadata": {"name": "wrong", "namespace": namespace}}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", **keys})
    cases: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "image": ({"image": "localhost/no-such-image:1"}, ("localhost/no-such-image:1", "--image")),
        "gpus": ({"gpus": 99}, ("asks for 99 nvidia.com/gpu", "no node has more than", "--set gpus=")),
        "secret": ({"secret": "no-such-secret"}, ('secret "no-such-secret" not found', "--set secret=")),
        "claim": ({"cache": "pvc:no-such-claim"}, ('"no-such-claim" not found', "kubectl get pvc")),
        "keys": ({"secret": "wrong"}, ("credentials",)),
    }
    with ThreadPoolExecutor(len(cases)) as pool:
        told = {
            name: pool.submit(submit, cluster, namespace, source, f"{source}-{name}", **options)
            for name, (options, _) in cases.items()
        }
    for name, (_, words) in cases.items():
        assert_told(told[name].result(), 1 if name == "keys" else 2, *words)
        # The folder is whole: another command may go on with it.
        assert Ledger(f"{source}-{name}").plan().shards
    assert cluster.json("-n", namespace, "get", "jobs,pods")["items"] == []


def test_a_quota_that_lets_no_pod_in_is_named(cluster: KubeCluster, s3_server: str, source: str) -> None:
    with cluster.namespace() as poor:
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}
        cluster.apply({**quota, "metadata": {"name": "none", "namespace": poor}})
        said = submit(cluster, poor, source, f"{source}-quota")
        assert_told(said, 2, "exceeded quota: none", "kubectl describe quota")


def test_a_cluster_that_lets_nobody_in_is_named(
    cluster: KubeCluster, namespace: str, source: str, tmp_path: Path
) -> None:
    place = f"{source}-refused"
    assert_told(
        submit(cluster, namespace, source, place, tmp_path / "none"), 2, "No cluster is configured", "KUBECONFIG"
    )
    expired = config_of(cluster, "expired", tmp_path / "expired")
    assert_told(submit(cluster, namespace, source, place, expired), 2, "have expired", "kubectl auth whoami")
    token = cluster.kubectl("-n", namespace, "create", "token", "default")
    nobody = config_of(cluster, token, tmp_path / "nobody")
    said = submit(cluster, namespace, source, place, nobody)
    assert_told(said, 2, 'cannot list resource "jobs"', "shardmill kubernetes render role")
    said = submit(cluster, "no-such-namespace", source, place)
    assert_told(said, 2, "There is no namespace 'no-such-namespace'", "kubectl get namespaces")


def test_a_name_that_another_run_has_is_left_alone(cluster: KubeCluster, namespace: str, source: str) -> None:
    place = f"{source}-taken"
    execution = Execution(**on_pods(cluster, namespace))
    other = make_job("s3://elsewhere/run", read_pod_options(execution), 1)
    other["metadata"]["name"] = job_name(place)
    other["spec"]["suspend"] = True
    cluster.apply(other)
    assert_told(submit(cluster, namespace, source, place), 2, "is taken by a Job of s3://elsewhere/run", "kubectl")
    cluster.kubectl("-n", namespace, "delete", "job", job_name(place))
