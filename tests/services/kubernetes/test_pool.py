"""A pool on a real cluster: KEDA's operator scales Jobs by the backlog, and a Deployment is scaled by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardmill import prepare
from shardmill.engines.kubernetes.monitor import MONITOR, PORT, TOKEN_KEY, make_monitor, service_host
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.scaling import POOL, PoolSize, adapter_rule, make_deployment, make_scaled_job
from shardmill.ledger import Ledger
from shardmill.run import Run
from tests.support.alert_targets import make_certificate
from tests.support.kube_cluster import SECRET, KubeCluster, watch_for
from tests.support.kube_runs import assert_committed_once, put_source, spec_of
from tests.support.libraries import needed
from tests.support.metrics_adapter import GROUP, VERSION, metrics_adapter
from tests.support.prometheus import prometheus
from tests.support.services import free_port, unavailable
from tests.support.together import Ends, TestSite, run_together
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.services
needed("cryptography")

TOKEN = "a token for the tests alone"
ROWS = 2_400


@pytest.fixture(scope="module")
def keda(cluster: KubeCluster) -> None:
    """KEDA's operator: the one of the cluster, or one that is started beside it."""
    if cluster.folder is None:
        if "keda-operator" not in cluster.kubectl("get", "pods", "-A", "-o", "name"):
            unavailable("no KEDA on the cluster")
        return
    if (cluster.folder / "pids" / "keda").exists():
        return
    home = os.environ.get("SHARDMILL_TEST_CLUSTER")
    if not home:
        unavailable("no KEDA: SHARDMILL_TEST_CLUSTER names the folder of its program")
    words = [sys.executable, str(Path(str(home)) / "cluster.py"), "keda", str(cluster.folder)]
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S)


def _options(site: TestSite) -> PodOptions:
    return PodOptions(site.cluster.image, site.namespace, gpus=0, memory="400Mi", secret=SECRET, grace_s=15)


def _place_monitor(site: TestSite, folder: str) -> tuple[str, int]:
    """Run the monitor of a folder as a pod, with its token, and wait until its probes pass; its host and port.

    Pods of the cluster that tests start share the network of this machine: no names, and a port that is free.
    """
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": MONITOR, "namespace": site.namespace}}
    objects = make_monitor(folder, _options(site))
    (container,) = objects[0]["spec"]["template"]["spec"]["containers"]
    host, port = service_host(site.namespace), PORT
    if site.cluster.folder is not None:
        host, port = "127.0.0.1", free_port()
        container["args"] = [str(port) if word == str(PORT) else word for word in container["args"]]
        container["ports"][0]["containerPort"] = port
    site.cluster.apply({**keys, "stringData": {TOKEN_KEY: TOKEN}}, *objects)
    find = partial(site.cluster.json, "-n", site.namespace, "get", "deployment", MONITOR)
    watch_for(lambda: find()["status"].get("availableReplicas"))
    return host, port


def _want(folder: str, name: str, source: str, **execution: Any) -> Ledger:
    ledger = prepare(spec_of(source, delay_s=0.2, **execution), f"{folder}/{name}").ledger
    ledger.state.want("anna@desk")
    return ledger


def _jobs(site: TestSite) -> dict[str, int]:
    """The active pods of each Job."""
    found = site.cluster.json("-n", site.namespace, "get", "jobs")["items"]
    return {job["metadata"]["uid"]: int(job["status"].get("active", 0)) for job in found}


def _scaled_by_keda(site: TestSite) -> None:
    """0 → 4 → 0; the object is changed in mid-run and nobody is ended; a stopped run draws no worker."""
    cluster, folder = site.cluster, f"{site.bucket}/{site.namespace}/keda"
    source = put_source(site.bucket, ROWS)
    stopped = _want(folder, "stopped", source, priority=1)
    stopped.state.stop("anna@desk")
    run = _want(folder, "run", source, then=["verify"])
    shards = len(run.plan().shards)
    objects = make_scaled_job(folder, _options(site), PoolSize(most=4, shards_per_worker=shards // 5))
    scaled = objects[1]["spec"]
    host, port = _place_monitor(site, folder)
    scaled["triggers"][0]["metadata"]["url"] = f"http://{host}:{port}/api/backlog"
    scaled["pollingInterval"], scaled["successfulJobsHistoryLimit"] = 2, 20
    with cluster.steady():
        cluster.apply(*objects)
        watch_for(lambda: sum(_jobs(site).values()) == 4)
        watch_for(run.commits.shards)
        at_work = [uid for uid, active in _jobs(site).items() if active]
        objects[1]["spec"]["jobTargetRef"]["template"]["metadata"]["labels"]["changed"] = "yes"
        cluster.apply(*objects)
    watch_for(lambda: run.state.look().state == "done")
    watch_for(lambda: not any(_jobs(site).values()))
    ended = cluster.json("-n", site.namespace, "get", "jobs")["items"]
    well = {job["metadata"]["uid"] for job in ended if job["status"].get("succeeded")}
    assert set(at_work) <= well, "whoever worked when the object was changed has ended by itself"
    assert len(run.workers.read()) >= 4
    assert not stopped.workers.read()
    assert Run(run.url).status().state == "complete"
    assert_committed_once(run)


def _deployment_scaled_down(site: TestSite) -> None:
    cluster, folder = site.cluster, f"{site.bucket}/{site.namespace}/deployment"
    run = _want(folder, "run", put_source(site.bucket, ROWS), lease_s=600.0)
    deployment = make_deployment(folder, replace(_options(site), labels={"test": "pool"}))[0]
    deployment["spec"]["replicas"] = 4
    with cluster.steady():
        cluster.apply(deployment)
        watch_for(lambda: len({lease.worker for lease in run.leases.read().values()}) == 4)
        cluster.kubectl("-n", site.namespace, "scale", "deployment", POOL, "--replicas=1")
    watch_for(lambda: len({lease.worker for lease in run.leases.read().values()}) <= 1)
    assert run.state.look().state != "done"
    cluster.kubectl("-n", site.namespace, "scale", "deployment", POOL, "--replicas=4")
    watch_for(lambda: run.state.look().state == "done")
    assert_committed_once(run)


def _deployment_scaled_by_its_autoscaler(site: TestSite) -> None:
    """The monitor's metric by way of Prometheus and the adapter's rule: from 1 to 3, the most that are allowed."""
    cluster = site.cluster
    with cluster.namespace() as own:
        site = replace(site, namespace=own, folder=site.folder / "hpa")
        site.folder.mkdir()
        folder = f"{site.bucket}/{own}"
        # It outlasts what an autoscaler needs, and is not finished.
        run = _want(folder, "run", put_source(site.bucket, 10 * ROWS), lease_s=600.0)
        _, port = _place_monitor(site, folder)
        (rule,) = adapter_rule()["rules"]["external"]
        with (
            prometheus(site.folder, port, TOKEN, own) as source,
            metrics_adapter(rule, source, make_certificate(site.folder)) as adapter,
        ):
            adapter_at = {"name": "adapter", "namespace": own}
            served = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": adapter}]}
            offered: dict[str, Any] = {"group": GROUP, "version": VERSION, "insecureSkipTLSVerify": True}
            offered |= {"service": {**adapter_at, "port": adapter}, "groupPriorityMinimum": 100, "versionPriority": 100}
            cluster.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {"name": "adapter", "namespace": own},
                    "spec": served,
                },
                {
                    "apiVersion": "apiregistration.k8s.io/v1",
                    "kind": "APIService",
                    "metadata": {"name": f"{VERSION}.{GROUP}"},
                    "spec": offered,
                },
                *make_deployment(folder, _options(site), PoolSize(most=3, shards_per_worker=2)),
            )
            try:
                watch_for(lambda: len({lease.worker for lease in run.leases.read().values()}) == 3)
            finally:
                cluster.kubectl("delete", "apiservice", f"{VERSION}.{GROUP}", check=False)
        scaler = cluster.json("-n", own, "get", "hpa", POOL)["status"]
        assert scaler["desiredReplicas"] == 3
        run.state.stop("anna@desk")


@pytest.fixture(scope="module")
def ends(site: TestSite, keda: None) -> Ends:
    scenarios = [_scaled_by_keda, _deployment_scaled_down]
    if site.cluster.folder is not None:
        scenarios.append(_deployment_scaled_by_its_autoscaler)
    return run_together(site, *scenarios)


def test_keda_starts_workers_by_the_backlog_and_none_without(ends: Ends) -> None:
    ends[_scaled_by_keda].result()


def test_a_deployment_is_scaled_down_in_mid_shard_and_nothing_is_lost(ends: Ends) -> None:
    ends[_deployment_scaled_down].result()


def test_an_autoscaler_of_pods_starts_workers_by_the_metric(ends: Ends) -> None:
    if _deployment_scaled_by_its_autoscaler not in ends:
        pytest.skip("the API server of the cluster does not reach this machine")
    ends[_deployment_scaled_by_its_autoscaler].result()
