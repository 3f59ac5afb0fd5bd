"""Pods that lose their node, or their place on it, and pods for which one is made first: nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardmill.engines.kubernetes.manifests import job_name
from shardmill.engines.kubernetes.scaling import make_node_pools
from shardmill.ledger import Ledger
from shardmill.run import Run, start
from tests.support.cli import Cli
from tests.support.engine_contract import assert_complete, live_workers
from tests.support.kube_cluster import SECRET, KubeCluster, watch_for
from tests.support.kube_nodes import cordoned, labelled, node_on_demand
from tests.support.kube_runs import assert_committed_once, on_pods, put_source, spec_of
from tests.support.together import TestSite

pytestmark = [pytest.mark.services, pytest.mark.by_command, pytest.mark.usefixtures("steady")]

ROWS = 900
# As a slice of a GPU is: a resource that the kubelet knows by its name alone.
GPU = "example.org/accelerator"


def begin(site: TestSite, workers: int = 2, **options: Any) -> Run:
    """A run that goes on without its command, once each worker has claimed a shard and one is committed."""
    source = put_source(site.bucket, ROWS)
    on = on_pods(site.cluster, site.namespace, **options)
    # A lease does not end by itself: what a pod held is free again because it gave it back.
    run = start(spec_of(source, 0.15, workers=workers, detach=True, lease_s=600.0, **on), f"{source}-run")
    watch_for(lambda: len({lease.worker for lease in run.ledger.leases.read().values()}) == workers)
    watch_for(run.ledger.commits.shards)
    return run


def finish(run: Run) -> None:
    """Wait for the end. Each item is done once in the result; some were done twice on the way, which is said."""
    watch_for(lambda: run.ledger.state.look().state == "done")
    assert_complete(run, ROWS)
    assert_committed_once(run.ledger)
    done = sum(int(beat["rows"]) for beat in run.ledger.workers.read())
    print(f"{done - ROWS} of {ROWS} items were done twice")


def pods_of(site: TestSite, run: Run) -> dict[str, Any]:
    name = f"{job_name(run.ledger.url)}-"
    return {
        pod["metadata"]["name"]: pod
        for pod in site.cluster.pods(site.namespace)
        if pod["metadata"]["name"].startswith(name)
    }


def uncounted(site: TestSite, run: Run) -> bool:
    """Whether the Job takes no pod for a failed one."""
    status = site.cluster.json("-n", site.namespace, "get", "job", job_name(run.ledger.url))["status"]
    return (status.get("failed", 0), status.get("failedIndexes", "")) == (0, "")


def test_a_node_is_cordoned_and_drained_in_mid_run(site: TestSite) -> None:
    run = begin(site)
    first = set(pods_of(site, run))
    with cordoned(site.cluster) as node:
        chosen = f"--pod-selector=job-name={job_name(run.ledger.url)}"
        site.cluster.kubectl("drain", node, chosen, "--delete-emptydir-data", "--ignore-daemonsets", "--force")
        watch_for(lambda: not live_workers(run.ledger))
        assert run.ledger.leases.read() == {}, "whoever is evicted gives its shards back"
        waiting = watch_for(lambda: set(pods_of(site, run)) - first)
        assert not run.ledger.is_over(len(run.plan.shards))
    watch_for(lambda: any(beat["id"] in waiting for beat in run.ledger.workers.read()))
    finish(run)
    assert uncounted(site, run)


def test_a_pod_of_higher_priority_takes_the_place_of_a_worker(site: TestSite) -> None:
    cluster = site.cluster
    if cluster.folder is None:
        pytest.skip("a cluster of several nodes has room for both")
    (node,) = cluster.json("get", "nodes")["items"]
    given = node["status"]["allocatable"]["cpu"]
    whole = int(given[:-1]) if given.endswith("m") else 1000 * int(given)
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
    cluster.apply({**urgent, "value": 1000, "preemptionPolicy": "PreemptLowerPriority", "globalDefault": False})
    try:
        run = begin(site, cpu=f"{whole * 35 // 100}m")
        ask = {"requests": {"cpu": f"{whole // 2}m"}}
        container = {"name": "main", "image": cluster.image, "command": ["sleep", "600"], "resources": ask}
        spec = {"priorityClassName": "urgent", "containers": [container], "terminationGracePeriodSeconds": 0}
        metadata = {"name": "urgent", "namespace": site.namespace}
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        watch_for(lambda: cluster.json("-n", site.namespace, "get", "pod", "urgent")["status"]["phase"] == "Running")
        # One of the two workers is ended for it, and the other goes on.
        events = cluster.kubectl("-n", site.namespace, "get", "events", "--field-selector=reason=Preempted")
        assert job_name(run.ledger.url) in events
        watch_for(lambda: len(live_workers(run.ledger)) == 1)
        cluster.kubectl("-n", site.namespace, "delete", "pod", "urgent", "--wait=false")
        finish(run)
        assert uncounted(site, run)
    finally:
        cluster.kubectl("delete", "priorityclass", "urgent", "--wait=false")


def test_a_queue_takes_a_run_back_and_lets_it_go_on_elsewhere(site: TestSite) -> None:
    """What Kueue does: it suspends the Job, and admits it again with the labels of another kind of node."""
    cluster, elsewhere = site.cluster, {"test/flavor": "spot"}
    run = begin(site, labels={"kueue.x-k8s.io/queue-name": "team"})
    name, first = job_name(run.ledger.url), set(pods_of(site, run))

    def patch(change: dict[str, Any], *words: str) -> None:
        cluster.kubectl("-n", site.namespace, "patch", "job", name, *words, "--type=merge", "-p", json.dumps(change))

    patch({"spec": {"suspend": True}})
    watch_for(lambda: not live_workers(run.ledger) and not pods_of(site, run))
    assert run.ledger.leases.read() == {}
    assert run.ledger.state.look().state not in ("done", "failed")
    # Labels may change once a Job counts as not started, which Kueue says, too.
    watch_for(lambda: not cluster.json("-n", site.namespace, "get", "job", name)["status"].get("active"))
    patch({"status": {"startTime": None}}, "--subresource=status")
    patch({"spec": {"template": {"spec": {"nodeSelector": elsewhere}}}})
    with labelled(cluster, elsewhere):
        patch({"spec": {"suspend": False}})
        second = watch_for(lambda: pods_of(site, run))
        assert not first & set(second)
        assert all(pod["spec"]["nodeSelector"] == elsewhere for pod in second.values())
        finish(run)
    assert uncounted(site, run)


def test_a_check_waits_for_a_node_that_is_made(
    site: TestSite, cluster: KubeCluster, shardmill: Cli, s3_server: str
) -> None:
    """No node has such a GPU; a pool of nodes may make one, which comes when the pod of the check waits."""
    pool = make_node_pools("my-cluster", "my-role")[1]
    pool["metadata"]["name"], pool["spec"]["limits"] = "from-zero", {GPU: "2"}
    labels = dict(pool["spec"]["template"]["metadata"]["labels"])
    cluster.apply(pool)
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    options = [f"secret={SECRET}", f"gpu_resource={GPU}", f"selector={selector}", "memory=400Mi"]
    given = ["--namespace", site.namespace, "--image", cluster.image, *(f"--set={each}" for each in options)]
    try:
        # More than any pool may have.
        bad = shardmill("kubernetes", "check", *given, "--set=gpus=3")
        assert bad.status == 1
        assert f"FAIL gpus         the largest node has 0 {GPU}, a pod asks for 3" in bad.out
        with node_on_demand(cluster, site.namespace, labels, {GPU: 2}) as waited:
            good = shardmill("kubernetes", "check", *given, "--out", f"{s3_server}/runs")
        assert good.status == 0, good
        assert waited, "it had to wait for a node"
        assert f"the largest node has 0 {GPU}, a pod asks for 1; the node pool from-zero may make one" in good.out
        assert "ok   store        a pod reads and writes" in good.out
    finally:
        cluster.kubectl("delete", "nodepool", "from-zero", "--wait=false")


def test_a_run_waits_for_a_node_that_is_made(site: TestSite) -> None:
    with site.cluster.namespace() as own:
        source, labels = put_source(site.bucket, ROWS), {"test/pool": own}
        on = on_pods(site.cluster, own, selector=labels)
        with node_on_demand(site.cluster, own, labels) as waited:
            place = f"{source}-run"
            run = start(spec_of(source, 0.02, workers=2, **on), place)
        assert waited
        assert_complete(run, ROWS)
        assert_committed_once(Ledger(place))
