"""What is shipped, on the test cluster: the reader's names, and what one small machine cannot give to a pod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shardmill.engines.kubernetes.monitor import MONITOR, PORT, TOKEN_KEY
from tests.support.kube_cluster import SECRET, KubeCluster
from tests.support.kube_pools import TOKEN
from tests.support.libraries import needed
from tests.support.services import free_port
from tests.support.together import TestSite
from tests.support.waiting import PATIENCE_S
from tools.manifests import KEYS

yaml = needed("yaml")
Json = dict[str, Any]
GPU = "nvidia.com/gpu"


def name_image(cluster: KubeCluster, name: str) -> str:
    """An image of this name on the cluster; the one it has, if nobody here may add one."""
    home = os.environ.get("SHARDMILL_TEST_CLUSTER")
    if cluster.folder is None or not home:
        return cluster.image
    words = [sys.executable, str(Path(home) / "cluster.py"), "image", str(cluster.folder), name]
    subprocess.run([*words, "--module", "shardmill"], check=True, capture_output=True, timeout=PATIENCE_S)
    return name


def put_keys(site: TestSite) -> None:
    """The Secrets that the guide tells to make: the monitor's token, and the keys of the bucket."""
    keys = site.cluster.json("-n", site.namespace, "get", "secret", SECRET)["data"]
    secret = {"apiVersion": "v1", "kind": "Secret"}
    site.cluster.apply(
        {**secret, "metadata": {"name": MONITOR, "namespace": site.namespace}, "stringData": {TOKEN_KEY: TOKEN}},
        {**secret, "metadata": {"name": KEYS, "namespace": site.namespace}, "data": keys},
    )


def kustomize(cluster: KubeCluster, place: Path) -> list[Json]:
    return [each for each in yaml.safe_load_all(cluster.kubectl("kustomize", str(place))) if each]


def fit(site: TestSite, objects: list[Json]) -> list[Json]:
    """The same objects with small requests, a fast KEDA, and an address of the monitor that pods of this machine reach.

    A pod shares the network of this machine, so the monitor has a port that is free.
    """
    for pod in _pods_of(objects):
        shrink(pod)
        for container in pod["containers"]:
            # What has no Secret has an identity, which this cluster has not.
            container.setdefault("envFrom", [{"secretRef": {"name": SECRET}}])
    for made in objects:
        if made["kind"] == "ScaledJob":
            made["spec"]["pollingInterval"] = 2
    if site.cluster.folder is None:
        return objects
    port = str(free_port())
    text = json.dumps([each for each in objects if each["metadata"]["name"] == MONITOR])
    fitted = json.loads(text.replace(f'"{PORT}"', f'"{port}"').replace(f": {PORT}", f": {port}"))
    for made in (others := [each for each in objects if each["metadata"]["name"] != MONITOR]):
        if made["kind"] == "ScaledJob":
            made["spec"]["triggers"][0]["metadata"]["url"] = f"http://127.0.0.1:{port}/api/backlog"
    return [*fitted, *others]


def shrink(pod: Json, keep: tuple[str, ...] = ()) -> Json:
    """A pod for the CPU of a small machine. What it asks for by the names in `keep` stays."""
    for container in pod["containers"]:
        kept = {name: value for name, value in container["resources"]["requests"].items() if name in keep}
        container["resources"] = {"requests": {"cpu": "100m", "memory": "600Mi", **kept}, "limits": kept}
        container["args"] = [
            "cpu" if word == "cuda" else "--device=cpu" if word == "--device=cuda" else word
            for word in container["args"]
        ]
    return pod


def _pods_of(objects: Iterable[Json]) -> Iterator[Json]:
    for made in objects:
        spec = made.get("spec", {})
        template = spec.get("template") or spec.get("jobTargetRef", {}).get("template") or {}
        if "containers" in template.get("spec", {}):
            yield template["spec"]
