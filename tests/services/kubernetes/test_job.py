"""Runs whose workers are the pods of a real Job."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import UsageError
from shardmill.engines.kubernetes.manifests import job_name
from shardmill.run import resume, start, stop
from shardmill.testing import check_engine
from tests.engines.test_conformance import CHECKS
from tests.support.cli import command
from tests.support.engine_contract import LOCALLY, assert_complete, live_workers
from tests.support.kube_cluster import watch_for
from tests.support.kube_runs import merge, on_pods, put_source, spec_of
from tests.support.together import Ends, TestSite, run_together
from tests.support.waiting import PATIENCE_S, hear_ctrl_c

pytestmark = [pytest.mark.services, pytest.mark.by_command]


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


def _conforming(site: TestSite) -> None:
    execution = {**on_pods(site.cluster, site.namespace), "workers": 2}
    assert check_engine(execution, f"{site.bucket}/conformance") == CHECKS


@pytest.fixture(scope="module")
def ends(site: TestSite) -> Iterator[Ends]:
    parts = (_resized_left_and_stopped, _moved_both_ways, _suspended_then_broken, _conforming)
    with run_together(site, *parts) as ends:
        yield ends


def test_it_runs_through_the_suite_of_engines(ends: Ends) -> None:
    ends[_conforming].result()


def test_workers_are_added_and_taken_away_in_mid_run_and_stop_leaves_nothing(ends: Ends) -> None:
    ends[_resized_left_and_stopped].result()


def test_a_run_begun_here_is_finished_on_pods_and_the_other_way_round(ends: Ends) -> None:
    ends[_moved_both_ways].result()


def test_a_suspended_job_waits_and_one_that_kills_its_workers_fails(ends: Ends) -> None:
    ends[_suspended_then_broken].result()
