"""Pods as a run has them: keys by the identity of their account, a model from an image, several workers in one pod."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shardmill import prepare
from shardmill.engines.kubernetes.manifests import job_name, make_job
from shardmill.engines.kubernetes.options import PodOptions, PodVolume
from shardmill.engines.kubernetes.pod import MODELS, make_pod
from tests.support.alert_targets import make_certificate
from tests.support.aws_identity import aws_identity
from tests.support.engine_contract import assert_complete, live_workers
from tests.support.kube_cluster import SECRET, KubeCluster, watch_for
from tests.support.kube_pools import pool_options, want
from tests.support.kube_runs import assert_committed_once, put_source, spec_of
from tests.support.libraries import needed
from tests.support.together import Ends, TestSite, run_together

pytestmark = [pytest.mark.services, pytest.mark.by_command]
needed("cryptography")

ACCOUNT = "shardmill"
ROLE = "arn:aws:iam::111122223333:role/shardmill"
TOKENS = "/var/run/secrets/eks.amazonaws.com/serviceaccount"


@contextmanager
def _identities(site: TestSite) -> Iterator[dict[str, tuple[str, dict[str, str]]]]:
    """What EKS adds to the pods of an account with a role: the audience of a token, and variables."""
    cluster, namespace = site.cluster, site.namespace
    certificate = make_certificate(site.folder, ca=False)
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "authority", "namespace": namespace},
            "data": {"ca.pem": certificate.read_text()},
        },
    )

    def review(token: str, audience: str) -> str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
        asked = {**body, "spec": {"token": token, "audiences": [audience]}}
        status = json.loads(cluster.kubectl("create", "-o", "json", "-f", "-", feed=json.dumps(asked)))["status"]
        return str(status["user"]["username"]) if status.get("authenticated") else ""

    who = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    with aws_identity(who, review, certificate) as sts, aws_identity(who, review) as agent:
        irsa = {"AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": f"{TOKENS}/token", "AWS_ENDPOINT_URL_STS": sts}
        by_agent = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent}/v1/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": f"{TOKENS}/token",
        }
        yield {"irsa": ("sts.amazonaws.com", irsa), "pod-identity": ("pods.eks.amazonaws.com", by_agent)}


def _add_identity(pod: dict[str, Any], audience: str) -> None:
    """What EKS's webhook does to a pod."""
    sources: list[dict[str, Any]] = [
        {"serviceAccountToken": {"path": "token", "audience": audience}},
        {"configMap": {"name": "authority"}},
    ]
    pod["spec"]["volumes"].append({"name": "identity", "projected": {"sources": sources}})
    mount = {"name": "identity", "mountPath": TOKENS, "readOnly": True}
    pod["spec"]["containers"][0]["volumeMounts"].append(mount)


def _place(cluster: KubeCluster, namespace: str, name: str, pod: dict[str, Any]) -> None:
    metadata = {**pod["metadata"], "name": name, "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]})


def _ends(cluster: KubeCluster, namespace: str, names: set[str]) -> dict[str, str]:
    """How pods ended, once all have."""

    def find() -> dict[str, str]:
        found = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in cluster.pods(namespace)}
        ended = {name: found[name] for name in names if found[name] in ("Succeeded", "Failed")}
        return ended if len(ended) == len(names) else {}

    return dict(watch_for(find))


def _keys_by_identity(site: TestSite) -> None:
    """Neither pod has a Secret; another account gets no keys."""
    cluster, namespace = site.cluster, site.namespace
    plain = {"AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"], "AWS_REGION": os.environ["AWS_REGION"]}
    with _identities(site) as identities:
        cases = {name: (ACCOUNT, *identity) for name, identity in identities.items()}
        cases["stranger"] = ("default", *identities["pod-identity"])
        for name, (account, audience, more) in cases.items():
            env = {**plain, "SSL_CERT_FILE": f"{TOKENS}/ca.pem"}
            options = PodOptions(cluster.image, namespace, gpus=0, service_account=account, env=env)
            pod = make_pod(options, ["kubernetes", "probe", f"{site.bucket}/{namespace}"], instance=name, env=more)
            _add_identity(pod, audience)
            _place(cluster, namespace, name, pod)
        ended = _ends(cluster, namespace, set(cases))
    said = {name: cluster.kubectl("-n", namespace, "logs", name) for name in cases}
    assert ended == {"irsa": "Succeeded", "pod-identity": "Succeeded", "stranger": "Failed"}, said
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in json.dumps([said, cluster.pods(namespace)])


def _models_in_an_image(site: TestSite) -> None:
    cluster, namespace = site.cluster, site.namespace
    options = PodOptions(cluster.image, namespace, gpus=0, cache=PodVolume("image", cluster.image))
    pod = make_pod(options, [], instance="models")
    look = f"import os; print(os.listdir('{MODELS}')); open('{MODELS}/mine', 'w')"
    pod["spec"]["containers"][0] |= {"command": ["python3", "-c", look], "args": []}
    _place(cluster, namespace, "models", pod)
    assert _ends(cluster, namespace, {"models"}) == {"models": "Failed"}
    said = cluster.kubectl("-n", namespace, "logs", "models")
    assert "Read-only file system" in said
    assert not said.startswith("[]"), "the files of the image are there"


def _several_workers_in_a_pod(site: TestSite) -> None:
    """The cluster counts the GPUs; since no device comes with them here, the workers use the CPU."""
    cluster, namespace = site.cluster, site.namespace
    source = put_source(site.bucket, 1_500)
    place = f"{source}-gpus"
    run = prepare(spec_of(source, 0.2, workers=1, device="cpu"), place)
    run.ledger.state.want("anna@desk")
    options = PodOptions(cluster.image, namespace, gpus=2, memory="800Mi", secret=SECRET)
    job = make_job(place, options, 1)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["args"] = ["cpu" if word == "cuda" else word for word in container["args"]]
    with cluster.steady():
        cluster.apply(job)
        first = watch_for(lambda: len(found := live_workers(run.ledger)) == 2 and run.ledger.commits.shards() and found)
        pod = first[0]["id"].rsplit("-", 2)[0]
        # Its workers give their shards back, and the Job does not count it.
        cluster.kubectl("-n", namespace, "delete", "pod", pod, "--wait=false")
    assert pod.startswith(f"{job_name(place)}-0-")
    assert {worker["id"].rpartition("-")[0] for worker in first} == {f"{pod}-0", f"{pod}-1"}
    watch_for(lambda: run.ledger.state.look().state == "done")
    assert_complete(run, 1_500)
    assert_committed_once(run.ledger)
    assert len(run.ledger.workers.read()) == 4
    status = cluster.json("-n", namespace, "get", "job", job_name(place))["status"]
    assert (status.get("failed", 0), status.get("failedIndexes", "")) == (0, "")


def _nothing_to_claim(site: TestSite) -> None:
    """A worker of a pool in whose folder all runs are stopped ends at once, and well."""
    cluster, namespace, folder = site.cluster, site.namespace, f"{site.bucket}/{site.namespace}/pool"
    run = want(folder, "run", put_source(site.bucket, 100))
    run.state.stop("anna@desk")
    pod = make_pod(pool_options(site), ["work", folder, "--device", "cpu"], instance="idle")
    _place(cluster, namespace, "idle", pod)
    assert _ends(cluster, namespace, {"idle"}) == {"idle": "Succeeded"}
    assert not run.workers.read()


@pytest.fixture(scope="module")
def ends(site: TestSite) -> Iterator[Ends]:
    with run_together(
        site, _keys_by_identity, _models_in_an_image, _several_workers_in_a_pod, _nothing_to_claim
    ) as ends:
        yield ends


def test_a_pod_reads_and_writes_a_bucket_by_the_identity_of_its_account(ends: Ends) -> None:
    ends[_keys_by_identity].result()


def test_an_image_is_a_folder_of_models_that_nobody_changes(ends: Ends) -> None:
    ends[_models_in_an_image].result()


def test_a_pod_with_several_gpus_runs_a_worker_on_each(ends: Ends) -> None:
    ends[_several_workers_in_a_pod].result()


def test_a_worker_of_a_pool_without_runs_ends_well(ends: Ends) -> None:
    ends[_nothing_to_claim].result()
