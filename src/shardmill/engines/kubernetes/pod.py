"""The pod of every front: a Job, an Argo workflow and an autoscaled pool all make theirs here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shardmill._version import __version__
from shardmill.engines import process
from shardmill.engines.kubernetes.options import PLAIN_GPU, PodOptions, PodVolume, amount

# Also part of pod failure policies and of Argo's expressions.
CONTAINER = "worker"
# The name that Argo gives it.
ARGO_CONTAINER = "main"
# The image's command. It is always set: Argo cannot ask a registry for an entry point.
COMMAND = "shardmill"
SCRATCH, CACHE, MODELS = "/tmp", "/cache", "/models"
TERMINATION_LOG = "/dev/termination-log"
# Annotations of ours. The run's URL is too long for a label.
RUN, GENERATION = "shardmill/run", "shardmill/generation"
INDEX = "batch.kubernetes.io/job-completion-index"

_USER = 1000
# One pod's worth of work is lost if an autoscaler moves a pod to save a node.
_STAY = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
# PyTorch hands tensors between processes through shared memory; a container has 64 MB of it.
_SHM = "1Gi"


def make_pod(
    options: PodOptions,
    arguments: Sequence[str],
    *,
    instance: str,
    component: str = "worker",
    stays: bool = True,
    restarts: bool = False,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pod template that runs `shardmill` with these arguments: its `metadata` and its `spec`.

    `instance` names what the pods belong to together. A pod that `stays` is not moved by an autoscaler to save a node.
    One that `restarts` is of a Deployment. `env` are variables beside those of the options, and no secrets either.
    """
    return {
        "metadata": {
            "labels": {**options.labels, **make_labels(instance, component)},
            "annotations": {**options.annotations, **(_STAY if stays else {})},
        },
        "spec": make_pod_spec(options, arguments, restarts=restarts, env=env),
    }


def make_labels(instance: str, component: str = "worker") -> dict[str, str]:
    """Labels by Kubernetes' conventions, for selecting and for splitting costs."""
    return {
        "app.kubernetes.io/name": "shardmill",
        "app.kubernetes.io/instance": instance,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/managed-by": "shardmill",
    }


def make_pod_spec(
    options: PodOptions, arguments: Sequence[str], *, restarts: bool = False, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    volumes, mounts = _volumes(options)
    spec: dict[str, Any] = {
        "restartPolicy": "Always" if restarts else "Never",
        "terminationGracePeriodSeconds": options.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(options, arguments, mounts, env or {})],
        "volumes": volumes,
    }
    more = {
        "serviceAccountName": options.service_account,
        "priorityClassName": options.priority_class,
        "nodeSelector": dict(options.selector),
        "tolerations": _tolerations(options),
        "imagePullSecrets": [{"name": options.pull_secret}] if options.pull_secret else [],
        "topologySpreadConstraints": _spread(options),
    }
    return spec | {name: value for name, value in more.items() if value}


def _container(
    options: PodOptions, arguments: Sequence[str], mounts: list[dict[str, Any]], env: Mapping[str, str]
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "command": [COMMAND],
        "args": list(arguments),
        "env": _environment(options, env),
        "volumeMounts": mounts,
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if options.secret:
        container["envFrom"] = [{"secretRef": {"name": options.secret}}]
    if resources := _resources(options):
        container["resources"] = resources
    return container


def _environment(options: PodOptions, env: Mapping[str, str]) -> list[dict[str, Any]]:
    plain = {
        "HOME": SCRATCH,
        "XDG_CACHE_HOME": CACHE if options.cache is not None and options.cache.kind != "image" else f"{SCRATCH}/cache",
        "PYTHONUNBUFFERED": "1",
        process.TERMINATION_LOG: TERMINATION_LOG,
        **options.env,
        **env,
    }
    # The worker has the pod's name, by which its end is known to the ledger.
    named = {"name": "SHARDMILL_WORKER", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [named, *({"name": name, "value": value} for name, value in plain.items())]


def _resources(options: PodOptions) -> dict[str, dict[str, str]]:
    """CPU is requested, not limited: a pod may use what its node has idle. Memory is both, as it cannot be shared."""
    gpus = {options.gpu_resource: str(options.gpus)} if options.gpus else {}
    memory = {"memory": options.memory} if options.memory else {}
    requests = {**({"cpu": options.cpu} if options.cpu else {}), **memory, **_disk(options), **gpus}
    limits = {**memory, **gpus}
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def _disk(options: PodOptions) -> dict[str, str]:
    """Room on the node's disk for folders that have a size: a node without it is not chosen."""
    sizes = [each.size for each in (options.scratch, options.cache) if each is not None and each.size]
    if not sizes:
        return {}
    whole = sizes[0] if len(sizes) == 1 else f"{math.ceil(sum(map(amount, sizes)) / 2**20)}Mi"
    return {"ephemeral-storage": whole}


def _volumes(options: PodOptions) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    wanted: list[tuple[str, str, PodVolume]] = [("scratch", SCRATCH, options.scratch)]
    if options.cache is not None:
        wanted.append(("cache", MODELS if options.cache.kind == "image" else CACHE, options.cache))
    volumes = [{"name": name, **_volume(volume)} for name, _, volume in wanted]
    mounts: list[dict[str, Any]] = [
        {"name": name, "mountPath": path, **({"readOnly": True} if volume.kind == "image" else {})}
        for name, path, volume in wanted
    ]
    if options.scratch.kind == "pvc":
        mounts[0]["subPathExpr"] = "$(SHARDMILL_WORKER)"
    if options.gpus or options.shm:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shm or _SHM}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    return volumes, mounts


def _volume(volume: PodVolume) -> dict[str, Any]:
    if volume.kind == "pvc":
        return {"persistentVolumeClaim": {"claimName": volume.name}}
    if volume.kind == "image":
        return {"image": {"reference": volume.name, "pullPolicy": "IfNotPresent"}}
    return {"emptyDir": {"sizeLimit": volume.size} if volume.size else {}}


def _tolerations(options: PodOptions) -> list[dict[str, Any]]:
    """Those of the options, and those of the taints that keep pods without GPUs from nodes that have some.

    Nodes whose GPUs are sliced or shared have the taint of whole ones.
    """
    given = [dict(each) for each in options.tolerations]
    usual = [PLAIN_GPU] if options.gpu_resource.startswith("nvidia.com/") else []
    for key in dict.fromkeys([options.gpu_resource, *usual]) if options.gpus else ():
        if all(each.get("key") != key for each in given):
            given.append({"key": key, "operator": "Exists", "effect": "NoSchedule"})
    return given


def _spread(options: PodOptions) -> list[dict[str, Any]]:
    if not options.spread:
        return []
    alike = {"matchLabels": {"app.kubernetes.io/name": "shardmill"}}
    rule = {"maxSkew": 1, "topologyKey": options.spread, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": alike}
    return [rule]
