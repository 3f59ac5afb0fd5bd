"""What cannot work on a cluster is said in a line with the next thing to try, and nothing is left behind."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shardmill.engines.kubernetes.argo import TASKS, make_template
from shardmill.engines.kubernetes.manifests import job_name, make_job
from shardmill.engines.kubernetes.options import PodOptions, read_pod_options
from shardmill.ledger import Ledger
from shardmill.plan.spec import Execution
from shardmill.store import open_store
from tests.support.cli import Said, assert_told, process
from tests.support.kube_cluster import KubeCluster
from tests.support.kube_runs import on_pods, put_source
from tests.support.services import free_port
from tests.support.together import Scenario, TestSite

_SPEC = ("--task", "shardmill.testing:FakeTask", "--text", "text", "--id", "id")


def submit(
    cluster: KubeCluster, namespace: str, source: str, place: str, config: Path | None = None, **options: Any
) -> Said:
    gpus = "gpus" in options
    given = on_pods(cluster, namespace, **options)["engine_options"]
    words = [f"--set={name}={value}" for name, value in given.items()]
    device = [] if gpus else ["--device", "cpu"]
    environment = {**os.environ, "KUBECONFIG": str(config)} if config else None
    with cluster.steady():
        return process(
            *("run", source, *_SPEC, "--engine", "kubernetes", *device, *words, "--out", place), env=environment
        )


def cannot_start(site: TestSite) -> None:
    """All at once: each takes as long as a cluster needs to find out."""
    cluster, namespace, source = site.cluster, site.namespace, put_source(site.bucket, 100)
    wrong = {"AWS_ACCESS_KEY_ID": "wrong", "AWS_SECRET_ACCESS_KEY": "wrong", "AWS_ALLOW_HTTP": "true"}
    right = cluster.json("-n", namespace, "get", "secret", "bucket")["data"]
    keys = {"data": right, "stringData": wrong, "metadata": {"name": "wrong", "namespace": namespace}}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", **keys})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    unbound = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": claim}
    cluster.apply({**unbound, "metadata": {"name": "unbound", "namespace": namespace}})
    cases: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "image": ({"image": "localhost/no-such-image:1"}, ("localhost/no-such-image:1", "--image")),
        "gpus": ({"gpus": 99}, ("asks for 99 nvidia.com/gpu", "no node has more than", "--set gpus=")),
        "secret": ({"secret": "no-such-secret"}, ('secret "no-such-secret" not found', "--set secret=")),
        "claim": ({"cache": "pvc:no-such-claim"}, ('"no-such-claim" not found', "kubectl get pvc")),
        "unbound": ({"cache": "pvc:unbound"}, ("unbound immediate PersistentVolumeClaims", "kubectl get pvc")),
        "keys": ({"secret": "wrong"}, ("access is denied", "shardmill kubernetes check", "--set secret=wrong")),
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
    left = [each["metadata"]["name"] for each in cluster.json("-n", namespace, "get", "jobs,pods")["items"]]
    assert not [name for name in left if name.startswith(tuple(job_name(f"{source}-{case}") for case in cases))]


def no_quota(site: TestSite) -> None:
    source = put_source(site.bucket, 100)
    with site.cluster.namespace() as poor:
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}
        site.cluster.apply({**quota, "metadata": {"name": "none", "namespace": poor}})
        said = submit(site.cluster, poor, source, f"{source}-quota")
        assert_told(said, 2, "exceeded quota: none", "kubectl describe quota")


def nobody_let_in(site: TestSite) -> None:
    cluster, namespace, source = site.cluster, site.namespace, put_source(site.bucket, 100)
    place = f"{source}-refused"
    none, expired = site.folder / "none", cluster.config_with("expired", site.folder / "expired")
    assert_told(submit(cluster, namespace, source, place, none), 2, "No cluster is configured", "KUBECONFIG")
    assert_told(submit(cluster, namespace, source, place, expired), 2, "have expired", "kubectl auth whoami")
    token = cluster.kubectl("-n", namespace, "create", "token", "default")
    nobody = cluster.config_with(token, site.folder / "nobody")
    said = submit(cluster, namespace, source, place, nobody)
    assert_told(said, 2, 'cannot list resource "jobs"', "shardmill kubernetes render role")


def nobody_answers(site: TestSite) -> None:
    """A server that is not there, and one that accepts and says nothing."""
    source = put_source(site.bucket, 100)

    def submit_to(port: int) -> Said:
        file = site.cluster.config_with("any", site.folder / f"away-{port}")
        config = json.loads(file.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        file.write_text(json.dumps(config))
        return submit(site.cluster, site.namespace, source, f"{source}-{port}", file)

    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        ports = (free_port(), silent.getsockname()[1])
        for port, said in zip(ports, pool.map(submit_to, ports), strict=True):
            assert_told(said, 74, f"The cluster does not answer at https://127.0.0.1:{port}", "kubectl cluster-info")


def wrong_names(site: TestSite) -> None:
    """A namespace that is not there, and a name that another run's Job has."""
    cluster, namespace, source = site.cluster, site.namespace, put_source(site.bucket, 100)
    place = f"{source}-taken"
    said = submit(cluster, "no-such-namespace", source, place)
    assert_told(said, 2, "There is no namespace 'no-such-namespace'", "kubectl get namespaces")
    other = make_job("s3://elsewhere/run", read_pod_options(Execution(**on_pods(cluster, namespace))), 1)
    other["metadata"]["name"] = job_name(place)
    other["spec"]["suspend"] = True
    cluster.apply(other)
    assert_told(submit(cluster, namespace, source, place), 2, "is taken by a Job of s3://elsewhere/run", "kubectl")


def wrong_template(site: TestSite) -> None:
    cluster, source = site.cluster, put_source(site.bucket, 10)
    template = make_template(TASKS[-1], PodOptions(cluster.image, site.namespace))
    cluster.apply(template)
    given = ("--set", f"namespace={site.namespace}", "--out", f"{source}-never")
    for more, words in {
        ("--set=template=gpu-embeding-generation-parallel",): (
            "no template 'gpu-embeding-generation-parallel'",
            "gpu-embedding-generation-parallel",
        ),
        ("--set=image=a",): ("has no option 'image'",),
        ("--set=namespace=nowhere",): ("There is no namespace 'nowhere'", "kubectl get namespaces"),
    }.items():
        with cluster.steady():
            said = process("run", source, *_SPEC, "--engine", "argo", *given, *more)
        assert_told(said, 2, *words)
    assert open_store(f"{source}-never").head("plan.json") is None


ALL: tuple[Scenario, ...] = (cannot_start, no_quota, nobody_let_in, nobody_answers, wrong_names, wrong_template)
