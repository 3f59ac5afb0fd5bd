"""The node of the test cluster: closed for a while, or "made" when a pod waits for one, as an autoscaler does."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.kube_cluster import KubeCluster

# Where a pod may not run for want of a node, it waits this long for the new one.
_MAKES_S = 3.0


def name_of_node(cluster: KubeCluster) -> str:
    return str(cluster.json("get", "nodes")["items"][0]["metadata"]["name"])


@contextlib.contextmanager
def cordoned(cluster: KubeCluster) -> Iterator[str]:
    """The node takes no new pod meanwhile."""
    node = name_of_node(cluster)
    cluster.kubectl("cordon", node)
    try:
        yield node
    finally:
        cluster.kubectl("uncordon", node)


@contextlib.contextmanager
def labelled(cluster: KubeCluster, labels: Mapping[str, str]) -> Iterator[None]:
    node = name_of_node(cluster)
    cluster.kubectl("label", "node", node, "--overwrite", *(f"{name}={value}" for name, value in labels.items()))
    try:
        yield
    finally:
        cluster.kubectl("label", "node", node, *(f"{name}-" for name in labels))


@contextlib.contextmanager
def node_on_demand(
    cluster: KubeCluster, namespace: str, labels: Mapping[str, str], resources: Mapping[str, int] | None = None
) -> Iterator[list[str]]:
    """No node has these labels and resources until a pod waits for one: then an event says so, and one has.

    Gives the names of the pods that waited.
    """
    node, over, waited = name_of_node(cluster), threading.Event(), list[str]()

    def watch() -> None:
        while not over.is_set():
            for pod in cluster.pods(namespace):
                if _is_unplaced(pod):
                    waited.append(pod["metadata"]["name"])
                    _announce(cluster, pod)
                    time.sleep(_MAKES_S)
                    _make(cluster, node, labels, resources or {})
                    return
            over.wait(0.5)

    scaler = threading.Thread(target=watch)
    scaler.start()
    try:
        yield waited
    finally:
        over.set()
        scaler.join()
        cluster.kubectl("label", "node", node, *(f"{name}-" for name in labels), "test-")
        forget(cluster, node, resources or {})


def forget(cluster: KubeCluster, node: str, resources: Mapping[str, Any]) -> None:
    """The node has these resources no more."""
    for name in resources:
        for kind in ("capacity", "allocatable"):
            gone = [{"op": "remove", "path": f"/status/{kind}/{_escaped(name)}"}]
            words = ("--subresource=status", "--type=json", "-p", json.dumps(gone))
            cluster.kubectl("patch", "node", node, *words, check=False)


def _make(cluster: KubeCluster, node: str, labels: Mapping[str, str], resources: Mapping[str, int]) -> None:
    cluster.kubectl("label", "node", node, "--overwrite", *(f"{name}={value}" for name, value in labels.items()))
    added = [{"op": "add", "path": f"/status/capacity/{_escaped(n)}", "value": str(v)} for n, v in resources.items()]
    if added:
        cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(added))


def _escaped(name: str) -> str:
    return name.replace("/", "~1")


def _is_unplaced(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def _announce(cluster: KubeCluster, pod: dict[str, Any]) -> None:
    """What the cluster autoscaler says of a pod for which it makes a node."""
    of = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{of['name']}.scaleup", "namespace": of["namespace"]},
        "involvedObject": {"kind": "Pod", "apiVersion": "v1", **of},
        "reason": "TriggeredScaleUp",
        "message": "pod triggered scale-up: [{test 0->1 (max: 1)}]",
        "type": "Normal",
        "source": {"component": "cluster-autoscaler"},
        "firstTimestamp": now,
        "lastTimestamp": now,
    }
    cluster.apply(event)
