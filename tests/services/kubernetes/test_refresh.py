"""A CronJob on a real cluster refreshes a finished run, and makes nothing where nothing changed; Argo does so, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from shardmill.engines.kubernetes.api import ClusterApi
from shardmill.engines.kubernetes.render import render_refresh
from shardmill.engines.kubernetes.scheduled import refresh_name
from shardmill.ledger import Editions, Ledger
from shardmill.plan.spec import make_execution
from shardmill.run import Run, start
from shardmill.store import open_store
from tests.support.argo_reader import ArgoReader
from tests.support.corpora import fake_rows
from tests.support.engine_contract import LOCALLY
from tests.support.kube_cluster import watch_for
from tests.support.kube_runs import on_pods, put_source, spec_of
from tests.support.together import Ends, TestSite, run_together

pytestmark = pytest.mark.services

ROWS = 300


def _put(source: str, rows: list[dict[str, Any]]) -> None:
    folder, _, name = source.rpartition("/")
    open_store(folder).put(name, "".join(json.dumps(row) + "\n" for row in rows).encode())


def _turn(site: TestSite, cron: str, name: str) -> None:
    """A turn at once, as `kubectl create job --from` begins it."""
    site.cluster.kubectl("-n", site.namespace, "create", "job", name, f"--from=cronjob/{cron}")


def _ended(site: TestSite, job: str) -> tuple[Any, str]:
    """How a Job ended, and what its last pod said."""

    def find() -> Any:
        status = site.cluster.json("-n", site.namespace, "get", "job", job)["status"]
        # Other conditions come before its pods are counted.
        held = {each["type"] for each in status.get("conditions", ()) if each["status"] == "True"}
        return status if held & {"Complete", "Failed"} else None

    status = watch_for(find)
    pods = site.cluster.json("-n", site.namespace, "get", "pods", "-l", f"job-name={job}")["items"]
    last = max((pod["metadata"] for pod in pods), key=lambda pod: pod["creationTimestamp"])
    return status, site.cluster.kubectl("-n", site.namespace, "logs", last["name"])


def _is_proved(place: str, edition: int, rows: int) -> None:
    assert Editions(place).current() == edition
    run = Run(place)
    assert len(run.table()) == rows
    report = run.verify(report=False)
    assert report.verified, [check for check in report.checks if not check.ok]


def _finished(site: TestSite) -> tuple[str, str]:
    """A run, and its source, which has changed since: of ROWS items ten are gone, and one is new."""
    source = put_source(site.bucket, ROWS)
    place = f"{source}-run"
    start(spec_of(source, 0.2, workers=2, **LOCALLY), place)
    _put(source, [*fake_rows(ROWS)[10:], {"id": "a", "text": "a new text"}])
    return source, place


def _by_a_cron_job(site: TestSite) -> None:
    cluster, namespace = site.cluster, site.namespace
    source, place = _finished(site)

    # The schedule begins the first turn.
    execution = on_pods(cluster, namespace, schedule="* * * * *", deadline="10min")
    cluster.apply(*render_refresh("refresh", make_execution(execution), place))
    cron = refresh_name(place)
    watch_for(lambda: Editions(place).current() == 2)
    cluster.kubectl("-n", namespace, "patch", "cronjob", cron, "-p", '{"spec": {"suspend": true}}')
    watch_for(lambda: not cluster.json("-n", namespace, "get", "cronjob", cron)["status"].get("active"))
    _is_proved(place, 2, ROWS - 9)

    # A pod that is told to stop in the middle is no failure: the next one goes on.
    new = [{"id": f"new {n}", "text": f"a new text of its own, {n}"} for n in range(200)]
    _put(source, [*fake_rows(ROWS)[10:], *new])
    _turn(site, cron, "second")
    edition = Ledger(Editions(place).open(3))
    watch_for(edition.commits.shards)
    cluster.kubectl("-n", namespace, "delete", "pod", "-l", "job-name=second", "--wait=false")
    status, said = _ended(site, "second")
    assert (status.get("succeeded"), status.get("failed", 0)) == (1, 0), said
    assert f"Edition 3 has {ROWS - 10 + 200} items" in said
    assert len({commit.worker for commit in edition.commits.read().values()}) > 1
    _is_proved(place, 3, ROWS - 10 + 200)

    _turn(site, cron, "third")
    status, said = _ended(site, "third")
    assert status.get("succeeded") == 1, said
    assert "Nothing has changed: edition 3 has 490 items." in said
    assert not open_store(place).head("editions/000004/origin.json")
    _is_proved(place, 3, ROWS - 10 + 200)


def _by_a_workflow(site: TestSite) -> None:
    cluster, namespace = site.cluster, site.namespace
    _, place = _finished(site)
    execution = on_pods(cluster, namespace, schedule="0 2 * * *")
    *rights, cron = render_refresh("argo-refresh", make_execution(execution), place)
    cluster.apply(*rights)
    metadata = {"name": "refresh", "namespace": namespace}
    workflow = {"kind": "Workflow", "metadata": metadata, "spec": cron["spec"]["workflowSpec"]}
    reader = ArgoReader(ClusterApi(namespace=namespace), workflow, None, lambda node, pod: None)
    assert reader.run().phase == "Succeeded"
    assert reader.nodes["refresh.onExit"].phase == "Succeeded"
    _is_proved(place, 2, ROWS - 9)


@pytest.fixture(scope="module")
def ends(site: TestSite) -> Iterator[Ends]:
    with run_together(site, _by_a_cron_job, _by_a_workflow) as ends:
        yield ends


def test_a_cron_job_refreshes_twice_and_makes_nothing_of_a_source_that_stayed(ends: Ends) -> None:
    ends[_by_a_cron_job].result()


def test_a_workflow_of_argo_refreshes(ends: Ends) -> None:
    ends[_by_a_workflow].result()
