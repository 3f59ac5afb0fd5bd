"""What is tried on a real cluster each time: a run on its own, through every fault, by KEDA, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from shardmill.core.errors import EngineRefused
from shardmill.engines.kubernetes import workflow
from shardmill.engines.kubernetes.manifests import job_name
from shardmill.engines.kubernetes.scaling import PoolSize, make_scaled_job
from shardmill.ledger import Ledger
from shardmill.plan.spec import Execution
from shardmill.run import Run, start, stop
from tests.services.kubernetes import refusals
from tests.support.cli import command
from tests.support.engine_contract import LOCALLY, assert_complete, live_workers
from tests.support.kube_cluster import watch_for
from tests.support.kube_pools import ROWS, ensure_keda, place_monitor, pool_options, want
from tests.support.kube_runs import assert_committed_once, merge, on_pods, put_source, spec_of
from tests.support.together import Ends, Scenario, TestSite, run_together
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.services

_AWAY_S = 30.0


def _finished_with_nobody_there(site: TestSite) -> None:
    cluster, namespace = site.cluster, site.namespace
    source = put_source(site.bucket, 600)
    place, merged = f"{source}-run", f"{source}-merged.parquet"
    options = on_pods(cluster, namespace)["engine_options"]
    words = [f"--set={name}={value}" for name, value in options.items()]
    spec = ["--task", "shardmill.testing:FakeTask", "--text", "text", "--id", "id", "--shard-bytes", "4000"]
    given = ["--engine", "kubernetes", "--device", "cpu", "--workers", "3", "--detach", *words]
    steps = ["--then", "verify", "--then", f"merge:{merged}"]
    with cluster.steady():
        done = subprocess.run(
            command("run", source, *spec, *given, *steps, "--out", place),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    assert "Detached: kubernetes job" in done.stderr
    ledger = Ledger(place)
    watch_for(lambda: ledger.state.look().state == "done")
    assert_complete(Run(place), 600)
    assert_committed_once(ledger)
    # The first worker that is done ends the Job, and the others with it.
    name = job_name(place)
    watch_for(lambda: cluster.json("-n", namespace, "get", "job", name)["status"].get("succeeded"))


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


def _jobs(site: TestSite) -> dict[str, int]:
    """The active pods of each Job that KEDA made."""
    found = site.cluster.json("-n", site.namespace, "get", "jobs")["items"]
    return {job["metadata"]["uid"]: int(job["status"].get("active", 0)) for job in found}


def _scaled_by_keda(site: TestSite) -> None:
    """0 → 4 → 0; the object is changed in mid-run and nobody is ended; a stopped run draws no worker."""
    with site.cluster.steady():
        ensure_keda(site.cluster)
    with site.cluster.namespace() as own:
        _scale_by_keda(replace(site, namespace=own))


def _scale_by_keda(site: TestSite) -> None:
    cluster, folder = site.cluster, f"{site.bucket}/{site.namespace}/keda"
    source = put_source(site.bucket, ROWS)
    stopped = want(folder, "stopped", source, priority=1)
    stopped.state.stop("anna@desk")
    run = want(folder, "run", source, then=["verify"])
    shards = len(run.plan().shards)
    objects = make_scaled_job(folder, pool_options(site), PoolSize(most=4, shards_per_worker=shards // 5))
    scaled = objects[1]["spec"]
    host, port = place_monitor(site, folder)
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


@pytest.fixture(scope="module")
def ends(site: TestSite) -> Iterator[Ends]:
    runs = (_through_every_fault, _finished_with_nobody_there, _scaled_by_keda)
    with run_together(site, *runs, *refusals.ALL) as ends:
        yield ends


def test_a_run_through_every_fault_equals_an_undisturbed_one(ends: Ends) -> None:
    ends[_through_every_fault].result()


def test_a_run_is_finished_merged_and_verified_with_nobody_there(ends: Ends) -> None:
    ends[_finished_with_nobody_there].result()


def test_keda_starts_workers_by_the_backlog_and_none_without(ends: Ends) -> None:
    ends[_scaled_by_keda].result()


@pytest.mark.parametrize("refusal", refusals.ALL, ids=lambda refusal: refusal.__name__)
def test_what_cannot_work_is_said_in_a_line(ends: Ends, refusal: Scenario) -> None:
    ends[refusal].result()


def test_a_cluster_without_argo_is_named(steady: None, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server has never heard of the kind."""
    monkeypatch.setattr(workflow, "TEMPLATES", "absent.example.org/v1/workflowtemplates")
    execution = Execution(engine="argo", device="cpu", engine_options={"namespace": namespace})
    with pytest.raises(EngineRefused, match="Argo Workflows is not installed") as told:
        workflow.ArgoEngine(execution)
    assert "--engine kubernetes" in told.value.hint
