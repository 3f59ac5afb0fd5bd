"""What may happen to pods, to the API server and to the command: the result is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from shardmill.engines.kubernetes.manifests import job_name
from shardmill.run import start, stop
from tests.support.cli import command
from tests.support.engine_contract import LOCALLY, live_workers
from tests.support.kube_cluster import watch_for
from tests.support.kube_runs import assert_committed_once, merge, on_pods, put_source, spec_of
from tests.support.together import Ends, TestSite, run_together
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.services

_AWAY_S = 30.0


def _undisturbed(source: str, folder: Path) -> bytes:
    """What a run that nothing happens to makes of a source."""
    start(spec_of(source, 0.0, workers=1, **LOCALLY), folder / "undisturbed")
    return merge(str(folder / "undisturbed"), folder / "undisturbed.parquet")


def _through_every_fault(site: TestSite) -> None:
    with ExitStack() as alone:
        alone.enter_context(site.cluster.steady(alone=True))
        _disturb(site, alone)


def _disturb(site: TestSite, alone: ExitStack) -> None:
    cluster, namespace = site.cluster, site.namespace
    source = put_source(site.bucket, 1_500)
    place = f"{source}-faults"
    execution = on_pods(cluster, namespace, shm="1Gi")
    run = start(spec_of(source, 0.25, workers=3, detach=True, lease_s=20.0, **execution), place)
    submitter = subprocess.Popen(command("resume", place), stderr=subprocess.PIPE)

    def running(index: int, but: str = "") -> str:
        """The pod of an index whose worker works, not the one before."""

        def find() -> str:
            live = {worker["id"] for worker in live_workers(run.ledger) if worker["state"] == "working"}
            found = [name for name in live if name.startswith(f"{job_name(place)}-{index}-") and name != but]
            return found[0] if found else ""

        return str(watch_for(find))

    try:
        first, second, third = running(0), running(1), running(2)
        cluster.kubectl("-n", namespace, "delete", "pod", first, "--wait=false")
        os.kill(cluster.pid_of(second), signal.SIGKILL)
        cluster.evict(namespace, third)
        began = time.monotonic()
        with cluster.without_api_server():
            submitter.kill()
            submitter.wait()
            submitter = subprocess.Popen(command("resume", place), stderr=subprocess.PIPE)
            expected = _undisturbed(source, site.folder)
            time.sleep(max(0.0, began + _AWAY_S - time.monotonic()))
        alone.close()
        starved = running(0, but=first)
        cluster.starve(namespace, starved)
        watch_for(lambda: (run.ledger.execution().get("read_ahead") or 1.0) < 1.0)
        _, said = submitter.communicate(timeout=PATIENCE_S)
        assert submitter.returncode == 0, said
    finally:
        submitter.kill()
        submitter.wait()
        with_nothing = stop(place)
    assert with_nothing.living == 0
    assert merge(place, site.folder / "merged.parquet") == expected
    assert_committed_once(run.ledger)
    assert "OOMKilled" in run.ledger.store.get(f"logs/{starved}.log").decode()


def _suspended_then_broken(site: TestSite) -> None:
    cluster, namespace = site.cluster, site.namespace
    source = put_source(site.bucket, 2_000)
    place = f"{source}-run"
    run = start(spec_of(source, 1.0, workers=1, detach=True, max_restarts=1, **on_pods(cluster, namespace)), place)
    watch_for(lambda: live_workers(run.ledger))

    def suspend(now: bool) -> None:
        change = f'{{"spec": {{"suspend": {str(now).lower()}}}}}'
        cluster.kubectl("-n", namespace, "patch", "job", job_name(place), "-p", change)

    suspend(True)
    watch_for(lambda: not live_workers(run.ledger))
    watching = subprocess.Popen(command("resume", place), stderr=subprocess.PIPE, text=True)
    watch_for(lambda: "suspended, waiting to be admitted" in run.ledger.notes.placement()[0])
    # Settings that no worker can read: each dies of an error that is nobody's wish.
    run.ledger.put_execution({**run.ledger.execution(), "no_such_setting": 1})
    suspend(False)
    _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 1, said
    assert "died 2 times in a row" in said
    assert "no_such_setting" in said
    assert run.ledger.state.look().state == "failed"
    assert not [pod for pod in cluster.pods(namespace) if pod["metadata"]["name"].startswith(job_name(place))]


@pytest.fixture(scope="module")
def ends(site: TestSite) -> Ends:
    return run_together(site, _through_every_fault, _suspended_then_broken)


def test_a_run_through_every_fault_equals_an_undisturbed_one(ends: Ends) -> None:
    ends[_through_every_fault].result()


def test_a_suspended_job_waits_and_one_that_kills_its_workers_fails(ends: Ends) -> None:
    ends[_suspended_then_broken].result()
