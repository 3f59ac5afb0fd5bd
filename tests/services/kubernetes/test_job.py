"""Runs whose workers are the pods of a real Job."""

from __future__ import annotations

import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardmill.engines.kubernetes.manifests import job_name
from shardmill.errors import UsageError
from shardmill.ledger import Ledger
from shardmill.run import Run, resume, start, stop
from tests.support.cli import command
from tests.support.engine_contract import LOCALLY, assert_complete, live_workers
from tests.support.kube_cluster import watch_for
from tests.support.kube_runs import assert_committed_once, merge, on_pods, put_source, spec_of
from tests.support.together import Ends, TestSite, run_together
from tests.support.waiting import PATIENCE_S, hear_ctrl_c

pytestmark = pytest.mark.services


def _finished_with_nobody_there(site: TestSite) -> None:
    cluster, namespace = site.cluster, site.namespace
    source = put_source(site.bucket, 600)
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
    watch_for(lambda: ledger.state.look().state == "done")
    assert_complete(Run(place), 600)
    assert_committed_once(ledger)
    # The first worker that is done ends the Job, and the others with it.
    name = job_name(place)
    watch_for(lambda: cluster.json("-n", namespace, "get", "job", name)["status"].get("succeeded"))


def _resized_left_and_stopped(site: TestSite) -> None:
    cluster, namespace = site.cluster, site.namespace
    source = put_source(site.bucket, 20_000)
    place = f"{source}-run"
    execution = on_pods(cluster, namespace)
    run = start(spec_of(source, 0.2, workers=3, detach=True, **execution), place)
    watch_for(lambda: len(live_workers(run.ledger)) == 3)
    # The Job is there, so its options are taken from the folder; others than its own are not.
    settings = run.ledger.execution()
    options = settings["engine_options"]
    others = {**options, "env": {**dict(options.get("env") or {}), "LD_PRELOAD": "/tmp/theirs.so"}}
    run.ledger.put_execution({**settings, "engine_options": others})
    with pytest.raises(UsageError, match=r"sets .*env"):
        resume(place, {"detach": True})
    run.ledger.put_execution(settings)
    for workers in (1, 2):
        resume(place, {"workers": workers, "detach": True})
        watch_for(lambda: len(live_workers(run.ledger)) == workers)  # noqa: B023
    # Ctrl-C ends the command, not the run.
    began = time.time()
    watching = subprocess.Popen(command("resume", place), stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c)
    watch_for(lambda: run.ledger.notes.placement()[1] > began)
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 130, said
    assert f"Come back: shardmill resume {place}" in said
    watch_for(lambda: len(live_workers(run.ledger)) == 2 and run.ledger.commits.shards())
    assert stop(place).living == 0
    assert not [pod for pod in cluster.pods(namespace) if pod["metadata"]["name"].startswith(job_name(place))]
    assert run.ledger.leases.read() == {}
    assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)
    # Without the Job, a folder does not choose what runs on the cluster.
    with pytest.raises(UsageError, match="sets image, secret"):
        resume(place)


def _moved(source: str, folder: Path, first: dict[str, Any], second: dict[str, Any]) -> bytes:
    """Begin a run on one engine, stop it, and finish it on another; the merged result."""
    place = f"{source}-{first['engine']}"
    run = start(spec_of(source, 0.1, workers=2, detach=True, **first), place)
    watch_for(lambda: run.ledger.commits.shards())
    assert stop(place).living == 0
    assert len(run.ledger.commits.shards()) < len(run.plan.shards)
    assert_complete(resume(place, {**second, "workers": 2}), 900)
    assert len({c.worker for c in run.ledger.commits.read().values()}) >= 2
    return merge(place, folder / f"{first['engine']}.parquet")


def _moved_both_ways(site: TestSite) -> None:
    source, pods = put_source(site.bucket, 900), on_pods(site.cluster, site.namespace)
    with ThreadPoolExecutor() as pool:
        here = pool.submit(_moved, source, site.folder, LOCALLY, pods)
        there = pool.submit(_moved, source, site.folder, pods, LOCALLY)
    assert here.result() == there.result()


@pytest.fixture(scope="module")
def ends(site: TestSite) -> Ends:
    return run_together(site, _finished_with_nobody_there, _resized_left_and_stopped, _moved_both_ways)


def test_a_run_is_finished_merged_and_verified_with_nobody_there(ends: Ends) -> None:
    ends[_finished_with_nobody_there].result()


def test_workers_are_added_and_taken_away_in_mid_run_and_stop_leaves_nothing(ends: Ends) -> None:
    ends[_resized_left_and_stopped].result()


def test_a_run_begun_here_is_finished_on_pods_and_the_other_way_round(ends: Ends) -> None:
    ends[_moved_both_ways].result()
