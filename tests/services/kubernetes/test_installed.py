"""What the chart installs, on a real cluster: a pool that does a run to its end, and the monitor that counts it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardmill.engines.kubernetes.monitor import MONITOR, PORT, TOKEN_KEY
from shardmill.engines.kubernetes.scaling import POOL
from shardmill.run import Run
from tests.support.chart import merge_values, render_chart
from tests.support.kube_cluster import SECRET, watch_for
from tests.support.kube_pools import TOKEN, want
from tests.support.kube_runs import assert_committed_once, put_source
from tests.support.services import free_port
from tests.support.together import TestSite

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("steady")]


def _values(site: TestSite, folder: str) -> dict[str, Any]:
    name, _, tag = site.cluster.image.rpartition(":")
    registry, _, repository = name.rpartition("/")
    return {
        "folder": folder,
        "image": {"registry": registry, "repository": repository, "tag": tag},
        "secret": SECRET,
        "workers": {"scaler": "hpa", "device": "cpu", "cpu": "100m", "memory": "400Mi"},
    }


def _install(site: TestSite, values: dict[str, Any]) -> None:
    """As Helm does. Pods of the cluster that tests start share the network of this machine, so a port must be free."""
    objects = render_chart(values, site.namespace)
    if site.cluster.folder is not None:
        port = str(free_port())
        text = json.dumps([each for each in objects if each["metadata"]["name"] == MONITOR])
        text = text.replace(f'"{PORT}"', f'"{port}"').replace(f": {PORT}", f": {port}")
        objects = [each for each in objects if each["metadata"]["name"] != MONITOR] + json.loads(text)
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": MONITOR, "namespace": site.namespace}}
    site.cluster.apply({**keys, "stringData": {TOKEN_KEY: TOKEN}}, *objects)


def _replaced(site: TestSite) -> int:
    """How many pods of the pool are there that the Deployment still counts, of its newest template."""
    status = site.cluster.json("-n", site.namespace, "get", "deployment", POOL)["status"]
    return int(status.get("updatedReplicas", 0)) if status.get("availableReplicas") else 0


def test_a_chart_that_is_installed_and_upgraded_does_a_run(site: TestSite) -> None:
    site.cluster.kubectl("label", "namespace", site.namespace, "pod-security.kubernetes.io/enforce=restricted")
    folder = f"{site.bucket}/{site.namespace}/installed"
    run = want(folder, "run", put_source(site.bucket, 1_200))
    values = _values(site, folder)
    _install(site, values)
    watch_for(lambda: run.leases.read())
    find = lambda: site.cluster.json("-n", site.namespace, "get", "deployment", MONITOR)["status"]  # noqa: E731
    watch_for(lambda: find().get("availableReplicas"))
    # The pool is replaced in the middle of the run: its pods give their shards back.
    _install(site, merge_values(values, {"env": {"UPGRADED": "1"}}))
    watch_for(lambda: run.state.look().state == "done")
    assert_committed_once(run)
    assert Run(f"{folder}/run").verify().verified
    watch_for(lambda: _replaced(site) == 1)
