"""A Job of 500 workers over 50,000 shards on a real API server, with the pods' statuses patched instead of run.

KUBECONFIG=… SHARDMILL_TEST_IMAGE=… python -m benchmarks.cluster_size [--workers 500] [--shards 50000] [--watch-s 60]
SHARDMILL_TEST_CLUSTER=FOLDER       python -m benchmarks.cluster_size

The Job controller makes the pods, no scheduler places them, and this program says that they run. The command's side is
real: it watches Job and pods, and its requests are counted. Then the last shard is committed, one pod is said to have
succeeded, and the time is taken until the Job is complete and the command has seen it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, print_table
from benchmarks.status_scale import build, put_quickly
from shardmill.engines.kubernetes.api import ClusterApi, Json
from shardmill.engines.kubernetes.job import JOBS, RunJob
from shardmill.engines.kubernetes.manifests import job_name, make_job
from shardmill.engines.kubernetes.options import read_pod_options
from shardmill.engines.kubernetes.placement import JobPlacement
from shardmill.ledger import Ledger
from shardmill.ledger.record import encode
from shardmill.plan.spec import Execution
from tests.support.kube_cluster import KubeCluster, kube_cluster
from tests.support.ledgers import make_commit
from tests.support.seaweed import seaweed
from tests.support.waiting import wait_for

_PATCHED_AT_ONCE = 8
_POLL_S = 0.1


class CountedApi(ClusterApi):
    """Counts what the command asks."""

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace=namespace)
        self.asked: Counter[str] = Counter()

    def ask(self, method: str, path: str, *rest: Any, **params: Any) -> Json:
        self.asked[method] += 1
        return super().ask(method, path, *rest, **params)

    def find(self, path: str) -> Json | None:
        self.asked["GET"] += 1
        return super().find(path)

    def watch(self, path: str, version: str, **params: str | int) -> Iterator[tuple[str, Json]]:
        self.asked["WATCH"] += 1
        for event in super().watch(path, version, **params):
            self.asked["event"] += 1
            yield event


def set_status(api: ClusterApi, pod: Json, phase: str, state: Json) -> None:
    """Say how a pod stands, as its kubelet would."""
    image = pod["spec"]["containers"][0]["image"]
    container = {"name": "worker", "image": image, "imageID": "", "ready": False, "restartCount": 0, "state": state}
    status = {"status": {"phase": phase, "containerStatuses": [container]}}
    api.ask("PATCH", f"{api.path('pods', pod['metadata']['name'])}/status", status, patch=True)


def commit_rest(ledger: Ledger, shards: int) -> float:
    """Commit all shards that are not; when the last one was."""
    left = sorted(set(range(shards)) - ledger.commits.shards())
    for shard in left:
        put_quickly(ledger, ledger.commits.key(shard), encode(make_commit(shard, generation=ledger.folder.generation)))
    return time.monotonic()


def measure(cluster: KubeCluster, workers: int, shards: int, watch_s: float) -> list[list[str]]:
    with tempfile.TemporaryDirectory() as folder, cluster.namespace() as namespace:
        run = f"file://{folder}/run"
        ledger = build(f"{folder}/run", shards, workers)
        given = {"image": cluster.image, "namespace": namespace}
        execution = Execution(engine="kubernetes", workers=workers, device="cpu", engine_options=given)
        options, api, other = read_pod_options(execution), CountedApi(namespace), ClusterApi(namespace=namespace)
        manifest = make_job(run, options, workers)
        manifest["spec"]["template"]["spec"]["schedulerName"] = "nobody"
        placement = JobPlacement(run, api, RunJob(api, job_name(run), run), options, execution)
        began = time.monotonic()
        placement.start(manifest)
        pods = wait_for(lambda: _all_of(other, workers), timeout_s=900)
        made_s = time.monotonic() - began
        running = {"running": {"startedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}}
        with ThreadPoolExecutor(_PATCHED_AT_ONCE) as pool:
            list(pool.map(lambda pod: set_status(other, pod, "Running", running), pods))
        # What it took to see all of them start is no part of a minute in mid-run.
        _poll_for(placement, 15.0)
        api.asked.clear()
        began = time.monotonic()
        _poll_for(placement, watch_s)
        minutes = (time.monotonic() - began) / 60
        asked = {what: count / minutes for what, count in api.asked.items() if what != "event"}
        job, seen = other.find(other.path(JOBS, job_name(run))) or {}, _all_of(other, workers)
        committed_at = commit_rest(ledger, shards)
        set_status(other, seen[0], "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})
        while placement.poll():
            time.sleep(_POLL_S)
        ended_s = time.monotonic() - committed_at
        placement.stop()
        sizes = [len(json.dumps(pod)) for pod in seen]
        return [
            [f"{workers:,} × {shards:,}", "pods made by the Job controller", f"{made_s:.0f} s"],
            ["", "requests of the command, per minute", f"{sum(asked.values()):.0f} ({_listed(asked)})"],
            ["", "the Job as an object", f"{len(json.dumps(job)):,} bytes"],
            ["", "a pod; all pods", f"{max(sizes):,} bytes; {sum(sizes):,} bytes"],
            ["", "last commit to Job complete and seen", f"{ended_s:.1f} s"],
        ]


def _all_of(api: ClusterApi, workers: int) -> list[Json]:
    found, _ = api.items(api.path("pods"))
    return found if len(found) >= workers else []


def _poll_for(placement: JobPlacement, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        placement.poll()
        time.sleep(_POLL_S)


def _listed(counts: dict[str, float]) -> str:
    return ", ".join(f"{count:.0f} {what}" for what, count in sorted(counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--shards", type=int, default=50_000)
    parser.add_argument("--watch-s", type=float, default=60.0)
    args = parser.parse_args()
    describe_machine()
    # Only for the keys that every namespace of a test gets.
    with tempfile.TemporaryDirectory() as folder, seaweed(Path(folder)), kube_cluster() as cluster:
        print_table(["workers × shards", "what", "value"], measure(cluster, args.workers, args.shards, args.watch_s))


if __name__ == "__main__":
    main()
