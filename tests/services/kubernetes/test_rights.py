"""The rights that are shipped do what they must and nothing else, and no secret is where others could read it."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from shardmill.engines.kubernetes.argo import ACCOUNT, make_rights
from shardmill.engines.kubernetes.manifests import job_name
from shardmill.engines.kubernetes.rights import ARGO, HELPFUL, NAME, NEEDED, make_role
from shardmill.run import start, stop
from tests.support.cli import Cli
from tests.support.engine_contract import live_workers
from tests.support.kube_cluster import SECRET, KubeCluster, watch_for
from tests.support.kube_runs import on_pods, put_source, spec_of

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("steady")]


@pytest.fixture
def as_submitter(cluster: KubeCluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeCluster:
    """The cluster as it is seen by a command with the rights that are shipped."""
    cluster.apply(*make_role(namespace))
    config = cluster.config_with(cluster.kubectl("-n", namespace, "create", "token", NAME), tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(config))
    return KubeCluster(config, cluster.image, cluster.program)


def test_a_command_with_the_shipped_rights_places_watches_and_ends_a_run(
    cluster: KubeCluster, as_submitter: KubeCluster, namespace: str, s3_server: str
) -> None:
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    source = put_source(s3_server, 20_000)
    place = f"{source}-run"
    run = start(spec_of(source, 0.2, workers=2, detach=True, **on_pods(cluster, namespace)), place)
    (worker, *_) = watch_for(lambda: live_workers(run.ledger))
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    shown = json.dumps([cluster.json("-n", namespace, "get", kind) for kind in ("jobs", "pods", "events")])
    assert job_name(place) in shown
    assert secret not in shown
    assert "serviceAccountToken" not in shown
    assert secret not in cluster.kubectl("-n", namespace, "logs", worker["id"])
    if cluster.folder is not None:
        assert secret.encode() not in Path(f"/proc/{cluster.pid_of(worker['id'])}/cmdline").read_bytes()
    assert stop(place).living == 0
    assert not [pod for pod in cluster.pods(namespace) if job_name(place) in pod["metadata"]["name"]]
    assert "Forbidden" in as_submitter.kubectl("-n", namespace, "get", "secret", SECRET, check=False)
    assert "Forbidden" in as_submitter.kubectl("-n", namespace, "delete", "configmap", "any", check=False)


def test_the_accounts_may_do_nothing_else(cluster: KubeCluster, as_submitter: KubeCluster, namespace: str) -> None:
    """Beyond what every account may: ask what it may do, and read what the API offers."""

    def rights(account: str) -> dict[str, set[str]]:
        user = f"--as=system:serviceaccount:{namespace}:{account}"
        lines = cluster.kubectl("auth", "can-i", "--list", "-n", namespace, user).splitlines()[1:]
        rows = [line.partition(" ") for line in lines]
        return {resource: set(rest[rest.rindex("[") + 1 : -1].split()) for resource, _, rest in rows if resource}

    every = {**NEEDED, **ARGO, **HELPFUL}
    asked = {f"{resource}.{group}" if group else resource: set(verbs) for (group, resource), verbs in every.items()}
    anybody = {name for name in rights("default") if "review" in name}
    assert {name: verbs for name, verbs in rights(NAME).items() if name not in anybody} == asked
    assert not set(rights("default")) - anybody


def test_the_account_of_argos_pods_may_do_nothing_but_report(cluster: KubeCluster, namespace: str) -> None:
    cluster.apply(*make_rights(namespace))
    ask, who = partial(cluster.kubectl, "-n", namespace), f"--as=system:serviceaccount:{namespace}:{ACCOUNT}"
    listed = [line.split() for line in ask("auth", "can-i", "--list", who).splitlines()[1:]]
    may = {words[0]: words[-2:] for words in listed if not words[0].startswith(("[", "selfsubject"))}
    assert may == {"workflowtaskresults.argoproj.io": ["[create", "patch]"]}
    with pytest.raises(AssertionError, match="forbidden"):
        ask("get", "secrets", who)


def test_a_check_says_what_a_namespace_lacks(
    cluster: KubeCluster,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shardmill: Cli,
    s3_server: str,
) -> None:
    given = ["--namespace", namespace, "--image", cluster.image, "--device", "cpu", "--set", f"secret={SECRET}"]
    good = shardmill("kubernetes", "check", *given, "--out", f"{s3_server}/runs")
    assert good.status == 0, good
    assert "ok   store        a pod reads and writes" in good.out
    # Two accounts are tried, and the one that is not there is named.
    both = shardmill(
        "kubernetes", "check", *given, "--out", f"{s3_server}/runs", "--set=service_account=default,nobody"
    )
    assert both.status == 1
    assert "ok   store        a pod of the account default reads and writes" in both.out
    assert 'serviceaccount "nobody" not found' in both.out
    config = cluster.config_with(
        cluster.kubectl("-n", namespace, "create", "token", "default"), tmp_path / "kubeconfig"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    bad = shardmill("kubernetes", "check", *given)
    assert bad.status == 1
    assert "FAIL rights       missing: get jobs, list jobs" in bad.out
    assert f"shardmill kubernetes render role --set namespace={namespace} | kubectl apply -f -" in bad.out
