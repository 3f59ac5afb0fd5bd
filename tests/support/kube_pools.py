"""A pool on the test cluster: runs that somebody wants, the monitor that counts their shards, and the pods' options."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from shardmill import prepare
from shardmill.engines.kubernetes.monitor import MONITOR, PORT, TOKEN_KEY, make_monitor, service_host
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.ledger import Ledger
from tests.support.kube_cluster import SECRET, KubeCluster, watch_for
from tests.support.kube_runs import spec_of
from tests.support.services import free_port, unavailable
from tests.support.together import TestSite
from tests.support.waiting import PATIENCE_S

TOKEN = "a token for the tests alone"
ROWS = 2_400


def pool_options(site: TestSite) -> PodOptions:
    return PodOptions(site.cluster.image, site.namespace, gpus=0, memory="400Mi", secret=SECRET, grace_s=15)


def place_monitor(site: TestSite, folder: str) -> tuple[str, int]:
    """Run the monitor of a folder as a pod, with its token, and wait until its probes pass; its host and port.

    Pods of the cluster that tests start share the network of this machine: no names, and a port that is free.
    """
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": MONITOR, "namespace": site.namespace}}
    objects = make_monitor(folder, pool_options(site))
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


def want(folder: str, name: str, source: str, **execution: Any) -> Ledger:
    """A run that is planned and waits for a worker of the pool."""
    ledger = prepare(spec_of(source, delay_s=0.2, **execution), f"{folder}/{name}").ledger
    ledger.state.want("anna@desk")
    return ledger


def ensure_keda(cluster: KubeCluster) -> None:
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
