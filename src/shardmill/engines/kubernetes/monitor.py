"""The monitor on a cluster: one pod that reads a folder of runs, and serves its page, metrics and backlog."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.pod import make_labels, make_pod

MONITOR, PORT = "shardmill-monitor", 8080
# The Secret with the token has the monitor's name. It is made by hand: no manifest holds it.
TOKEN_KEY, TOKEN_FOLDER = "token", "/etc/shardmill"


def service_host(namespace: str) -> str:
    """The name by which the Service is reached from any namespace."""
    return f"{MONITOR}.{namespace or 'default'}.svc"


def make_monitor(folder: str, options: PodOptions) -> list[dict[str, Any]]:
    """Deployment, Service, NetworkPolicy and the budget of disruptions.

    Only pods of the namespaces that scale and scrape may connect. The budget never blocks a drain: there is one pod.
    """
    light = replace(options, gpus=0, selector={}, tolerations=(), spread="", cpu="100m", memory="1Gi", cache=None)
    # A token of the cluster is no part of it; one for the bucket comes with the account.
    host = service_host(options.namespace)
    arguments = ["monitor", folder, "--host", "0.0.0.0", "--port", str(PORT)]
    arguments += ["--token-file", f"{TOKEN_FOLDER}/{TOKEN_KEY}"]
    for name in (host, MONITOR, f"{host}.cluster.local"):
        arguments += ["--allow-host", name]
    pod = make_pod(light, arguments, instance=MONITOR, component="monitor", stays=False, restarts=True)
    (container,) = pod["spec"]["containers"]
    container["ports"] = [{"name": "http", "containerPort": PORT}]
    container["volumeMounts"] = [
        *container["volumeMounts"],
        {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
    ]
    look = {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5}
    container["startupProbe"] = {**look, "failureThreshold": 30}
    container["readinessProbe"] = look
    container["livenessProbe"] = {**look, "failureThreshold": 6}
    pod["spec"]["volumes"] = [
        *pod["spec"]["volumes"],
        {"name": "token", "secret": {"secretName": MONITOR, "defaultMode": 0o440}},
    ]
    labels = make_labels(MONITOR, "monitor")
    chosen = {name: labels[name] for name in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}
    metadata = {
        "name": MONITOR,
        **({"namespace": options.namespace} if options.namespace else {}),
        "labels": {**options.labels, **labels},
    }
    port = {"name": "http", "port": PORT, "targetPort": "http"}
    known = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["keda", "monitoring"]}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": chosen},
                "strategy": {"type": "Recreate"},
                "template": pod,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": chosen, "ports": [port]},
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": chosen},
            },
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata,
            "spec": {
                "podSelector": {"matchLabels": chosen},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {
                        "from": [{"namespaceSelector": {"matchExpressions": [known]}}],
                        "ports": [{"protocol": "TCP", "port": "http"}],
                    }
                ],
            },
        },
    ]
