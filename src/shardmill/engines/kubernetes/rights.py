"""The rights that a command needs to place the pods of its runs, and no others. The pods themselves need none."""

from __future__ import annotations

from typing import Any

NAME = "shardmill-submitter"
# By API group and resource. Each is used: jobs are placed, resized and ended, pods watched, a stuck one deleted.
NEEDED: dict[tuple[str, str], tuple[str, ...]] = {
    ("batch", "jobs"): ("get", "list", "watch", "create", "patch", "delete"),
    ("", "pods"): ("list", "watch", "delete"),
    ("", "pods/log"): ("get",),
    ("", "events"): ("list",),
}
# What `--engine argo` needs beside them: its template is read, its workflow placed, watched and ended.
ARGO: dict[tuple[str, str], tuple[str, ...]] = {
    ("argoproj.io", "workflowtemplates"): ("get", "list"),
    ("argoproj.io", "workflows"): ("get", "create", "delete"),
}
# Without them a pod that asks for more GPUs than any node has waits for ever: a larger node might come.
HELPFUL: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "nodes"): ("list",),
    ("karpenter.sh", "nodepools"): ("list",),
}


def make_role(namespace: str) -> list[dict[str, Any]]:
    """A service account for a command, and its rights in a namespace."""
    place = {"namespace": namespace} if namespace else {}
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace or "default"}
    rbac = "rbac.authorization.k8s.io"

    def rules(rights: dict[tuple[str, str], tuple[str, ...]]) -> list[dict[str, Any]]:
        return [
            {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
            for (group, resource), verbs in rights.items()
        ]

    def bind(kind: str, role: str) -> dict[str, Any]:
        return {"roleRef": {"apiGroup": rbac, "kind": role, "name": NAME}, "subjects": [subject], "kind": kind}

    labels = {"app.kubernetes.io/name": "shardmill", "app.kubernetes.io/component": "submitter"}
    within = {"name": NAME, **place, "labels": labels}
    overall = {"name": NAME, "labels": labels}
    version = {"apiVersion": f"{rbac}/v1"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": within, "automountServiceAccountToken": False},
        {**version, "kind": "Role", "metadata": within, "rules": rules(NEEDED | ARGO)},
        {**version, "metadata": within, **bind("RoleBinding", "Role")},
        {**version, "kind": "ClusterRole", "metadata": overall, "rules": rules(HELPFUL)},
        {**version, "metadata": overall, **bind("ClusterRoleBinding", "ClusterRole")},
    ]
