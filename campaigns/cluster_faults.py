"""Random faults on a real Kubernetes: pods deleted, killed, evicted and starved, the API server and commands stopped.

KUBECONFIG=… SHARDMILL_TEST_IMAGE=… python -m campaigns.cluster_faults [--minutes 10] [--seed 1] [--record FILE]
SHARDMILL_TEST_CLUSTER=FOLDER       python -m campaigns.cluster_faults [--minutes 10] [--seed 1] [--record FILE]

Each run has three pods, its folder in an S3 server, and a command that watches it. Faults come at random instants,
drawn with the seed, until the run is done. Then it is compared byte for byte with a run that nothing happened to, and
no shard may have been committed twice. With `--record`, finished runs are appended to a file, and the table is of all
of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, print_table
from shardmill.ledger import Ledger
from shardmill.run import resume, start, stop
from tests.support.cli import command
from tests.support.engine_contract import LOCALLY
from tests.support.kube_cluster import KubeCluster, kube_cluster
from tests.support.kube_runs import assert_committed_once, merge, on_pods, put_source, spec_of
from tests.support.seaweed import seaweed

ROWS, WORKERS = 3_000, 3
FAULT_EVERY_S = (1.0, 8.0)
# A run that takes longer hangs.
PATIENCE_S = 1_200.0


class FaultyRun:
    """One run, and what is done to it."""

    def __init__(self, cluster: KubeCluster, namespace: str, place: str, choose: random.Random) -> None:
        self.cluster, self.namespace, self.place, self.choose = cluster, namespace, place, choose
        self.ledger = Ledger(place)
        self.done: Counter[str] = Counter()
        self.command: subprocess.Popen[bytes] | None = None
        self.faults: dict[str, Callable[[], bool]] = {
            "pod deleted": self.delete,
            "worker killed -9": self.kill,
            "pod evicted": self.evict,
            "container OOMKilled": self.starve,
            "command killed": self.kill_command,
            "command interrupted": self.interrupt,
            "workers changed": self.resize,
            **({"API server hung": self.hang} if cluster.folder is not None else {}),
        }

    def watch(self) -> None:
        """Have a command that watches the run, as a user would who comes back."""
        if self.command is None or self.command.poll() is not None:
            self.command = subprocess.Popen(
                command("resume", self.place), stderr=subprocess.DEVNULL, start_new_session=True
            )

    def go(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.ledger.state.look().state != "done":
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.place} hangs: {dict(self.done)}")
            self.watch()
            time.sleep(self.choose.uniform(*FAULT_EVERY_S))
            fault = self.choose.choice(sorted(self.faults))
            with contextlib.suppress(AssertionError, ProcessLookupError):
                self.done[fault] += self.faults[fault]()
        if self.command is not None:
            self.command.wait(PATIENCE_S)

    def _pod(self) -> str:
        found = [
            pod["metadata"]["name"]
            for pod in self.cluster.pods(self.namespace)
            if pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]
        return self.choose.choice(sorted(found)) if found else ""

    def delete(self) -> bool:
        if pod := self._pod():
            self.cluster.kubectl("-n", self.namespace, "delete", "pod", pod, "--wait=false")
        return bool(pod)

    def kill(self) -> bool:
        if pod := self._pod():
            os.kill(self.cluster.pid_of(pod), signal.SIGKILL)
        return bool(pod)

    def evict(self) -> bool:
        if pod := self._pod():
            self.cluster.evict(self.namespace, pod)
        return bool(pod)

    def starve(self) -> bool:
        if pod := self._pod():
            self.cluster.starve(self.namespace, pod)
        return bool(pod)

    def hang(self) -> bool:
        with self.cluster.without_api_server():
            time.sleep(self.choose.uniform(2, 30))
        return True

    def kill_command(self) -> bool:
        assert self.command is not None
        self.command.kill()
        self.command.wait()
        return True

    def interrupt(self) -> bool:
        assert self.command is not None
        self.command.send_signal(signal.SIGTERM)
        self.command.wait(PATIENCE_S)
        return True

    def resize(self) -> bool:
        resume(self.place, {"workers": self.choose.randint(1, 4), "detach": True})
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    deadline = time.monotonic() + 60 * args.minutes
    outcomes: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bucket = stack.enter_context(seaweed(folder))
        cluster = stack.enter_context(kube_cluster())
        namespace = stack.enter_context(cluster.namespace())
        source = put_source(bucket, ROWS)
        start(spec_of(source, 0.0, workers=1, **LOCALLY), folder / "calm")
        calm = merge(str(folder / "calm"), folder / "calm.parquet")
        seed = args.seed
        while time.monotonic() < deadline:
            outcomes.append(disturb(cluster, namespace, source, seed, calm, folder))
            print(json.dumps(outcomes[-1]), flush=True)
            if args.record:
                with open(args.record, "a") as record:
                    record.write(json.dumps(outcomes[-1]) + "\n")
            seed += 1
    if args.record:
        outcomes = [json.loads(line) for line in args.record.read_text().splitlines()]
    show(outcomes)


def disturb(cluster: KubeCluster, namespace: str, source: str, seed: int, calm: bytes, folder: Path) -> dict[str, Any]:
    place, began = f"{source}-{seed}", time.monotonic()
    # Faults come far more often than in life: they are to be survived, not counted.
    settings = {"workers": WORKERS, "detach": True, "max_restarts": 1_000_000, "lease_s": 20.0}
    start(spec_of(source, 0.3, **settings, **on_pods(cluster, namespace, shm="1Gi")), place)
    run = FaultyRun(cluster, namespace, place, random.Random(seed))
    try:
        run.go()
    finally:
        if run.command is not None:
            run.command.kill()
            run.command.wait()
        stop(place)
    assert merge(place, folder / "merged.parquet") == calm, f"seed {seed}: the result differs"
    assert_committed_once(run.ledger)
    return {"seed": seed, "faults": dict(run.done), "seconds": round(time.monotonic() - began, 1)}


def show(outcomes: list[dict[str, Any]]) -> None:
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total.update(outcome["faults"])
    describe_machine()
    rows = [[name, str(count)] for name, count in sorted(total.items())]
    print_table(["what was done", "how often"], rows)
    seconds = sum(outcome["seconds"] for outcome in outcomes)
    print(f"{len(outcomes)} runs of {ROWS:,} rows in {seconds:,.0f} s: none differs, no shard was committed twice.")


if __name__ == "__main__":
    main()
