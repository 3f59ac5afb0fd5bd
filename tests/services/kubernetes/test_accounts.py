"""Both accounts that reach the bucket are tried by one check, which says which of them has no rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.kube_cluster import SECRET, KubeCluster, watch_for
from tests.support.together import TestSite

pytestmark = [pytest.mark.services, pytest.mark.by_command, pytest.mark.usefixtures("steady")]

_API = "admissionregistration.k8s.io/v1"


@contextmanager
def _keys_for(cluster: KubeCluster, namespace: str, account: str) -> Iterator[None]:
    """Pods of one account get keys as they are created, as a cloud's webhook does it."""
    name = f"keys-{namespace}"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    source = (
        f'Object.spec.containers.envFrom{{secretRef: Object.spec.containers.envFrom.secretRef{{name: "{SECRET}"}}}}'
    )
    change = f'[JSONPatch{{op: "add", path: "/spec/containers/0/envFrom", value: [{source}]}}]'
    meant = f'object.metadata.namespace == "{namespace}" && object.spec.serviceAccountName == "{account}"'
    spec: dict[str, Any] = {
        "matchConstraints": {"resourceRules": [pods]},
        "matchConditions": [{"name": "account", "expression": meant}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": change}}],
    }
    cluster.apply(
        {"apiVersion": _API, "kind": "MutatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": _API,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name},
        },
    )
    tried = json.dumps({"spec": {"serviceAccountName": account}})
    words = ("-n", namespace, "run", "tried", f"--image={cluster.image}", f"--overrides={tried}")
    try:
        # The API server heeds a policy some time after it has taken it.
        watch_for(lambda: SECRET in cluster.kubectl(*words, "--dry-run=server", "-o", "jsonpath={.spec..envFrom}"))
        yield
    finally:
        for kind in ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy"):
            cluster.kubectl("delete", kind, name, "--wait=false")


def test_a_check_says_which_account_has_no_rights(
    site: TestSite, cluster: KubeCluster, shardmill: Cli, s3_server: str
) -> None:
    for name in ("shardmill", "shardmill-argo"):
        account = {"apiVersion": "v1", "kind": "ServiceAccount"}
        cluster.apply({**account, "metadata": {"name": name, "namespace": site.namespace}})
    given = ["--namespace", site.namespace, "--image", cluster.image, "--device", "cpu", "--out", f"{s3_server}/runs"]
    with _keys_for(cluster, site.namespace, "shardmill"):
        said = shardmill("kubernetes", "check", *given, "--set=service_account=shardmill,shardmill-argo")
    assert said.status == 1, said
    assert "ok   store        a pod of the account shardmill reads and writes" in said.out
    assert "FAIL store        a pod of the account shardmill-argo: " in said.out
    missing = shardmill("kubernetes", "check", *given, "--set=service_account=nobody")
    assert missing.status == 1
    assert 'serviceaccount "nobody" not found' in missing.out
