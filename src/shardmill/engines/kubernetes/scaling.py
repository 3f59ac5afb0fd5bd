"""A pool of workers for a folder of runs, scaled by its backlog: by KEDA from 0, or by an autoscaler of pods from 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.core.errors import SpecError
from shardmill.engines.kubernetes.monitor import MONITOR, PORT, TOKEN_KEY, service_host
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.pod import make_labels, make_pod

POOL = "shardmill-pool"
METRIC = "shardmill_backlog_shards"
# Pods select nodes by it, so that no pool stands in for another one.
POOL_LABEL = "shardmill/pool"
_POLL_S = 15
# A worker that ends holds its shards no more; one that has just begun has not claimed any yet.
_SETTLE_S = 300
_KEPT_S = 3600
# EC2 instance types with one GPU by need, no larger than a worker uses: T4 and L4, A10G and L40S, H100.
MACHINES = {
    "shardmill-small": ("g4dn.xlarge", "g4dn.2xlarge", "g6.xlarge", "g6.2xlarge"),
    "shardmill-medium": ("g5.xlarge", "g5.2xlarge", "g6e.xlarge", "g6e.2xlarge"),
    "shardmill-large": ("p5.4xlarge",),
}


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The most workers, and the number of shards that are not done for each of them."""

    most: int = 24
    shards_per_worker: int = 8


def make_scaled_job(folder: str, options: PodOptions, size: PoolSize | None = None) -> list[dict[str, Any]]:
    """KEDA starts a Job of one worker for each `shards_per_worker` shards of the backlog, and none if there is none.

    A worker ends by itself when nothing can be claimed, so scaling down ends nobody. A change of the object touches no
    worker that runs.
    """
    size = size or PoolSize()
    metadata = _metadata(POOL, options)
    trigger = {
        "type": "metrics-api",
        "metadata": {
            "url": f"http://{service_host(options.namespace)}:{PORT}/api/backlog",
            "valueLocation": "unfinished",
            "targetValue": str(size.shards_per_worker),
            "authMode": "bearer",
        },
        "authenticationRef": {"name": POOL},
    }
    return [
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "TriggerAuthentication",
            "metadata": metadata,
            "spec": {"secretTargetRef": [{"parameter": "token", "name": MONITOR, "key": TOKEN_KEY}]},
        },
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledJob",
            "metadata": metadata,
            "spec": {
                "pollingInterval": _POLL_S,
                "minReplicaCount": 0,
                "maxReplicaCount": size.most,
                "successfulJobsHistoryLimit": 5,
                "failedJobsHistoryLimit": 20,
                "rollout": {"strategy": "gradual"},
                "scalingStrategy": {"strategy": "default"},
                "jobTargetRef": {
                    "parallelism": 1,
                    "completions": 1,
                    # Another worker is started by the backlog, not by the Job.
                    "backoffLimit": 0,
                    "ttlSecondsAfterFinished": _KEPT_S,
                    "template": make_pod(options, _serve(folder, options), instance=POOL),
                },
                "triggers": [trigger],
            },
        },
    ]


def make_deployment(folder: str, options: PodOptions, size: PoolSize | None = None) -> list[dict[str, Any]]:
    """The same without KEDA: workers that wait for the next run, and an autoscaler on an external metric.

    A pod that is ended gives its shards back; at most what it had in hand is repeated.
    """
    size = size or PoolSize()
    metadata, labels = _metadata(POOL, options), make_labels(POOL)
    chosen = {name: labels[name] for name in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}
    pod = make_pod(options, [*_serve(folder, options), "--forever"], instance=POOL, stays=False, restarts=True)
    target = {"type": "AverageValue", "averageValue": str(size.shards_per_worker)}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "selector": {"matchLabels": chosen},
                "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
                "template": pod,
            },
        },
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": metadata,
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": POOL},
                "minReplicas": 1,
                "maxReplicas": size.most,
                "metrics": [{"type": "External", "external": {"metric": {"name": METRIC}, "target": target}}],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": _SETTLE_S}},
            },
        },
    ]


def adapter_rule() -> dict[str, Any]:
    """The rule by which prometheus-adapter offers the monitor's backlog as an external metric, in its values file."""
    query = "max(<<.Series>>{<<.LabelMatchers>>})"
    return {
        "rules": {
            "external": [
                {
                    "seriesQuery": METRIC,
                    "resources": {"overrides": {"namespace": {"resource": "namespace"}}},
                    "name": {"as": METRIC},
                    "metricsQuery": query,
                }
            ]
        }
    }


def make_node_pools(cluster: str, role: str, sizes: Sequence[str] = tuple(MACHINES)) -> list[dict[str, Any]]:
    """Karpenter's pools of nodes with GPUs: spot first, on demand behind, empty nodes removed within a minute."""
    made: list[dict[str, Any]] = [
        {
            "apiVersion": "karpenter.k8s.aws/v1",
            "kind": "EC2NodeClass",
            "metadata": {"name": "shardmill"},
            "spec": {
                "role": role,
                "amiSelectorTerms": [{"alias": "al2023@latest"}],
                "subnetSelectorTerms": [{"tags": {"karpenter.sh/discovery": cluster}}],
                "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": cluster}}],
                "blockDeviceMappings": [
                    {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "200Gi", "volumeType": "gp3", "encrypted": True}}
                ],
                "metadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 1},
            },
        }
    ]
    # Of two pools that fit, the one with the greater weight is used: of each size, spot while there is some.
    kinds = [(name, kind) for name in sizes for kind in ("spot", "on-demand")]
    for rank, (name, kind) in enumerate(kinds):
        made.append(_node_pool(f"{name}-{kind}", MACHINES[name], kind, 10 * (len(kinds) - rank)))
    return made


def _node_pool(name: str, machines: Sequence[str], kind: str, weight: int) -> dict[str, Any]:
    def among(key: str, *values: str) -> dict[str, Any]:
        return {"key": key, "operator": "In", "values": list(values)}

    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "weight": weight,
            "limits": {"nvidia.com/gpu": "32"},
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "60s"},
            "template": {
                "metadata": {"labels": {POOL_LABEL: name.removesuffix(f"-{kind}")}},
                "spec": {
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "shardmill"},
                    "expireAfter": "336h",
                    "taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}],
                    "requirements": [
                        among("karpenter.sh/capacity-type", kind),
                        among("node.kubernetes.io/instance-type", *machines),
                        among("kubernetes.io/arch", "amd64"),
                        # A worker has one GPU: a machine with eight waits for seven more.
                        among("karpenter.k8s.aws/instance-gpu-count", "1"),
                    ],
                },
            },
        },
    }


def _serve(folder: str, options: PodOptions) -> list[str]:
    if options.gpus > 1:
        raise SpecError(
            f"gpus={options.gpus} is not for a pool: a worker of a folder has one GPU.", hint="Leave gpus out."
        )
    return ["work", folder, "--device", "cuda" if options.gpus else "cpu"]


def _metadata(name: str, options: PodOptions) -> dict[str, Any]:
    labels = {**options.labels, **make_labels(name)}
    return {"name": name, **({"namespace": options.namespace} if options.namespace else {}), "labels": labels}
