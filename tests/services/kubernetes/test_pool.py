"""A Deployment of workers on a real cluster: scaled by hand, and by an autoscaler of pods; and what KEDA says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from shardmill.engines.kubernetes.monitor import MONITOR, TOKEN_KEY
from shardmill.engines.kubernetes.scaling import POOL, PoolSize, adapter_rule, make_deployment, make_scaled_job
from shardmill.ledger import Ledger
from shardmill.run import Run
from tests.support.alert_targets import make_certificate
from tests.support.kube_cluster import watch_for
from tests.support.kube_pools import ROWS, TOKEN, ensure_keda, place_monitor, pool_options, want
from tests.support.kube_runs import assert_committed_once, put_source
from tests.support.libraries import needed
from tests.support.metrics_adapter import GROUP, VERSION, metrics_adapter
from tests.support.prometheus import prometheus
from tests.support.together import Ends, TestSite, run_together

pytestmark = [pytest.mark.services, pytest.mark.by_command]
needed("cryptography")


def _holders(run: Ledger) -> set[str]:
    return {lease.worker for lease in run.leases.read().values()}


def _watch_for_one(site: TestSite, run: Ledger) -> None:
    """Wait until one worker is left. Those that ended have given their shards back: no lease ends by itself so soon."""

    def left() -> list[str]:
        names = [pod["metadata"]["name"] for pod in site.cluster.pods(site.namespace)]
        return [name for name in names if name.startswith(f"{POOL}-")]

    watch_for(lambda: len(left()) == 1)
    (name,) = left()
    assert not [holder for holder in _holders(run) if not holder.startswith(name)]
    assert run.state.look().state != "done"


def _deployment_scaled_down(site: TestSite) -> None:
    cluster, folder = site.cluster, f"{site.bucket}/{site.namespace}/deployment"
    # One worker does not finish it while the others end.
    run = want(folder, "run", put_source(site.bucket, 3 * ROWS), lease_s=600.0)
    deployment = make_deployment(folder, replace(pool_options(site), labels={"test": "pool"}))[0]
    deployment["spec"]["replicas"] = 4
    with cluster.steady():
        cluster.apply(deployment)
        watch_for(lambda: len(_holders(run)) == 4)
        cluster.kubectl("-n", site.namespace, "scale", "deployment", POOL, "--replicas=1")
    _watch_for_one(site, run)
    cluster.kubectl("-n", site.namespace, "scale", "deployment", POOL, "--replicas=4")
    watch_for(lambda: run.state.look().state == "done")
    assert_committed_once(run)


@contextlib.contextmanager
def _metric(site: TestSite, monitor: int) -> Iterator[None]:
    """The monitor's metric, offered by the API server by way of Prometheus and the adapter's rule."""
    cluster, named = site.cluster, {"name": "adapter", "namespace": site.namespace}
    (rule,) = adapter_rule()["rules"]["external"]
    with (
        prometheus(site.folder, monitor, TOKEN, site.namespace) as source,
        metrics_adapter(rule, source, make_certificate(site.folder)) as port,
    ):
        address = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
        offered: dict[str, Any] = {"group": GROUP, "version": VERSION, "insecureSkipTLSVerify": True}
        offered |= {"service": {**named, "port": port}, "groupPriorityMinimum": 100, "versionPriority": 100}
        service = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "spec": offered}
        cluster.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": named, "spec": address},
            {**service, "metadata": {"name": f"{VERSION}.{GROUP}"}},
        )
        try:
            yield
        finally:
            cluster.kubectl("delete", "apiservice", f"{VERSION}.{GROUP}", check=False)


def _deployment_scaled_by_its_autoscaler(site: TestSite) -> None:
    """From 1 to 3 by the backlog; to 1 in mid-shard when a worker is to do more; to 6 when it is to do less."""
    cluster = site.cluster
    with cluster.namespace() as own:
        site = replace(site, namespace=own, folder=site.folder / "hpa")
        site.folder.mkdir()
        folder = f"{site.bucket}/{own}"
        # It outlasts what an autoscaler needs to decide twice. No lease ends by itself meanwhile.
        run = want(folder, "run", put_source(site.bucket, 8 * ROWS), lease_s=600.0)
        _, port = place_monitor(site, folder)

        def scale(most: int, shards_per_worker: int) -> None:
            """Decide at once: as it is shipped, five minutes pass before a worker is taken away."""
            objects = make_deployment(folder, pool_options(site), PoolSize(most, shards_per_worker))
            objects[1]["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
            cluster.apply(*objects)

        with _metric(site, port):
            scale(3, 2)
            watch_for(lambda: len(_holders(run)) == 3)
            scale(3, 1_000_000)
            _watch_for_one(site, run)
            assert cluster.json("-n", own, "get", "hpa", POOL)["status"]["desiredReplicas"] == 1
            scale(6, 2)
            watch_for(lambda: run.state.look().state == "done")
        assert Run(run.url).status().state == "complete"
        assert_committed_once(run)
        assert len(run.workers.read()) > 3


def _keda_says_why(site: TestSite) -> None:
    """What `kubectl describe scaledjob` says of a pool that starts nobody, as the guide has it."""
    ensure_keda(site.cluster)
    with site.cluster.namespace() as own:
        site = replace(site, namespace=own)
        _look_at_keda(site, f"{site.bucket}/{own}/none")


def _look_at_keda(site: TestSite, folder: str) -> None:
    cluster, own = site.cluster, site.namespace

    def put_token(token: str) -> None:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": MONITOR, "namespace": own}}
        cluster.apply({**secret, "stringData": {TOKEN_KEY: token}})

    def watch_for_words(words: str) -> None:
        watch_for(lambda: words in cluster.kubectl("-n", own, "describe", "scaledjob", POOL))

    host, port = place_monitor(site, folder)
    objects = make_scaled_job(folder, pool_options(site))
    objects[1]["spec"]["triggers"][0]["metadata"]["url"] = f"http://{host}:{port}/api/backlog"
    objects[1]["spec"]["pollingInterval"] = 2
    cluster.kubectl("-n", own, "delete", "secret", MONITOR)
    cluster.apply(*objects)
    watch_for_words("bearer token=<empty> is required")
    put_token("another token")
    watch_for_words("error requesting metrics endpoint: /api/backlog: api returned 401")
    put_token(TOKEN)
    watch_for_words("Scaling is not performed because triggers are not active")


@pytest.fixture(scope="module")
def ends(site: TestSite) -> Iterator[Ends]:
    scenarios = [_deployment_scaled_down, _keda_says_why]
    if site.cluster.folder is not None:
        scenarios.append(_deployment_scaled_by_its_autoscaler)
    with run_together(site, *scenarios) as ends:
        yield ends


def test_a_deployment_is_scaled_down_in_mid_shard_and_nothing_is_lost(ends: Ends) -> None:
    ends[_deployment_scaled_down].result()


def test_keda_says_why_it_starts_nobody(ends: Ends) -> None:
    ends[_keda_says_why].result()


def test_an_autoscaler_of_pods_adds_and_takes_workers_by_the_metric_and_nothing_is_lost(ends: Ends) -> None:
    if _deployment_scaled_by_its_autoscaler not in ends:
        pytest.skip("the API server of the cluster does not reach this machine")
    ends[_deployment_scaled_by_its_autoscaler].result()
