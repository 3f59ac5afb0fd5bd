"""Runs whose workers are the pods of a real Job."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from shardmill.engines.kubernetes.manifests import job_name
from shardmill.ledger import Ledger
from shardmill.run import Run, resume, start, stop
from tests.support.cli import command
from tests.support.engine_contract import LOCALLY, assert_complete, live_workers
from tests.support.kube_cluster import KubeCluster
from tests.support.kube_runs import assert_committed_once, on_pods, put_source, spec_of
from tests.support.waiting import PATIENCE_S, hear_ctrl_c, wait_for

pytestmark = pytest.mark.services


def test_a_run_is_finished_merged_and_verified_with_nobody_there(
    cluster: KubeCluster, namespace: str, s3_server: str
) -> None:
    source = put_source(s3_server, 600)
    place, merged = f"{source}-run", f"{source}-merged.parquet"
    options = on_pods(cluster, namespace)["engine_options"]
    words = [f"--set={name}={value}" for name, value in options.items()]
    spec = ["--task", "shardmill.testing:FakeTask", "--text", "text", "--id", "id", "--shard-bytes", "4000"]
    given = ["--engine", "kubernetes", "--device", "cpu", "--workers", "3", "--detach", *words]
    steps = ["--then", "verify", "--then", f"merge:{merged}"]
    done = subprocess.run(
        command("run", source, *spec, *given, *steps, "--out", place),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "Detached: kubernetes job" in done.stderr
    ledger = Ledger(place)
    wait_for(lambda: ledger.state.look().state == "done")
    assert_complete(Run(place), 600)
    assert_committed_once(ledger)
    # The first worker that is done ends the Job, and the others with it.
    name = job_name(place)
    wait_for(lambda: cluster.json("-n", namespace, "get", "job", name)["status"].get("succeeded"))


def test_workers_are_added_and_taken_away_in_mid_run_and_stop_leaves_nothing(
    cluster: KubeCluster, namespace: str, s3_server: str
) -> None:
    source = put_source(s3_server, 2_000)
    place = f"{source}-run"
    execution = on_pods(cluster, namespace)
    run = start(spec_of(source, 0.2, workers=3, detach=True, **execution), place)
    wait_for(lambda: len(live_workers(run.ledger)) == 3)
    # The Job is there, so its options are taken from the folder.
    for workers in (1, 2):
        resume(place, {"workers": workers, "detach": True})
        wait_for(lambda: len(live_workers(run.ledger)) == workers)  # noqa: B023
    # Ctrl-C ends the command, not the run.
    began = time.time()
    watching = subprocess.Popen(command("resume", place), stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c)
    wait_for(lambda: run.ledger.notes.placement()[1] > began)
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 130, said
    assert f"Come back: shardmill resume {place}" in said
    assert len(live_workers(run.ledger)) == 2
    assert stop(place).living == 0
    assert not [pod for pod in cluster.pods(namespace) if pod["metadata"]["name"].startswith(job_name(place))]
    assert run.ledger.leases.read() == {}
    assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)


def test_a_run_begun_here_is_finished_on_pods_and_the_other_way_round(
    cluster: KubeCluster, namespace: str, s3_server: str, tmp_path: Path
) -> None:
    source = put_source(s3_server, 900)
    pods = on_pods(cluster, namespace)
    for number, (first, second) in enumerate([(LOCALLY, pods), (pods, LOCALLY)]):
        place = f"{source}-run-{number}"
        run = start(spec_of(source, 0.05, workers=2, detach=True, **first), place)
        wait_for(lambda: run.ledger.commits.shards())  # noqa: B023
        assert stop(place).living == 0
        done = run.ledger.commits.shards()
        assert len(done) < len(run.plan.shards)
        assert_complete(resume(place, {**second, "workers": 2}), 900)
        assert len({c.worker for c in run.ledger.commits.read().values()}) >= 2
    assert merge(f"{source}-run-0", tmp_path / "0") == merge(f"{source}-run-1", tmp_path / "1")


def test_a_suspended_job_waits_and_one_that_kills_its_workers_fails(
    cluster: KubeCluster, namespace: str, s3_server: str
) -> None:
    source = put_source(s3_server, 100)
    place = f"{source}-run"
    run = start(spec_of(source, 1.0, workers=1, detach=True, max_restarts=1, **on_pods(cluster, namespace)), place)
    wait_for(lambda: live_workers(run.ledger))

    def suspend(now: bool) -> None:
        change = f'{{"spec": {{"suspend": {str(now).lower()}}}}}'
        cluster.kubectl("-n", namespace, "patch", "job", job_name(place), "-p", change)

    suspend(True)
    wait_for(lambda: not live_workers(run.ledger))
    watching = subprocess.Popen(command("resume", place), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: "suspended, waiting to be admitted" in run.ledger.notes.placement()[0])
    # Settings that no worker can read: each dies of an error that is nobody's wish.
    run.ledger.put_execution({**run.ledger.execution(), "no_such_setting": 1})
    suspend(False)
    _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 1, said
    assert "died 2 times in a row" in said
    assert "no_such_setting" in said
    assert run.ledger.state.look().state == "failed"
    assert not [pod for pod in cluster.pods(namespace) if pod["metadata"]["name"].startswith(job_name(place))]


def merge(place: str, file: Path) -> bytes:
    path = file.with_suffix(".parquet")
    Run(place).merge(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def undisturbed(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """A source, and what a run that nothing happens to makes of it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    source = put_source(s3_server, 1_500)
    start(spec_of(source, 0.0, workers=1, **LOCALLY), folder / "run")
    return source, merge(str(folder / "run"), folder / "merged")


def test_a_run_through_every_fault_equals_an_undisturbed_one(
    cluster: KubeCluster, namespace: str, undisturbed: tuple[str, bytes], tmp_path: Path
) -> None:
    source, expected = undisturbed
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

        return str(wait_for(find))

    def words(*more: str) -> list[str]:
        return ["-n", namespace, *more]

    try:
        first, second, third = running(0), running(1), running(2)
        cluster.kubectl(*words("delete", "pod", first, "--wait=false"))
        os.kill(cluster.pid_of(second), signal.SIGKILL)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": third, "namespace": namespace}}
        cluster.post(f"/api/v1/namespaces/{namespace}/pods/{third}/eviction", eviction)
        with cluster.without_api_server():
            submitter.kill()
            submitter.wait()
            submitter = subprocess.Popen(command("resume", place), stderr=subprocess.PIPE)
            time.sleep(8)
        fill = "import os\nwith open('/dev/shm/x', 'wb') as f:\n while True: f.write(bytes(1 << 20))"
        starved = running(0, but=first)
        cluster.kubectl(*words("exec", starved, "--", "python3", "-c", fill), check=False)
        wait_for(lambda: (run.ledger.execution().get("read_ahead") or 1.0) < 1.0)
        _, said = submitter.communicate(timeout=PATIENCE_S)
        assert submitter.returncode == 0, said
    finally:
        submitter.kill()
        submitter.wait()
        with_nothing = stop(place)
    assert with_nothing.living == 0
    assert merge(place, tmp_path / "merged") == expected
    assert_committed_once(run.ledger)
    assert "OOMKilled" in run.ledger.store.get(f"logs/{starved}.log").decode()
