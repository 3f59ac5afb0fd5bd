"""What a namespace of a cluster offers to a run, found before one is placed there."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardmill.core.errors import EngineRefused, EngineSilent
from shardmill.engines.deaths import failure
from shardmill.engines.kubernetes.api import ClusterApi, Json
from shardmill.engines.kubernetes.job import JOBS, RunJob
from shardmill.engines.kubernetes.options import PLAIN_GPU, PodOptions, amount
from shardmill.engines.kubernetes.pod import RUN, make_pod
from shardmill.engines.kubernetes.rights import NEEDED
from shardmill.engines.kubernetes.start import StartWatch, most_gpus
from shardmill.engines.kubernetes.state import PodEnd, end_of_pod, has_begun

# A pod starts within a minute, or, if a node is made for it, within minutes.
_POD_S, _NODE_S, _LOOK_S = 55.0, 600.0, 1.0
_POOLS = ("karpenter.sh", "nodepools", "list")
# Another program may have the same group: Argo CD has that of Argo Workflows.
_FRONTS = {
    "argoproj.io/v1alpha1": ("workflowtemplates", "--engine argo"),
    "keda.sh/v1alpha1": ("scaledjobs", "an autoscaled pool"),
}


@dataclass(frozen=True, slots=True)
class ClusterFact:
    """One line of a check: what was looked at, whether it will do, what was seen, and the fix."""

    name: str
    ok: bool
    said: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "said": self.said, "fix": self.fix}


def check_cluster(
    api: ClusterApi, options: PodOptions | None, place: str, accounts: Sequence[str] = ()
) -> Iterator[ClusterFact]:
    """Facts in the order in which they matter. With options a pod is started; with a place it also looks there.

    A pod is started for each of the accounts, if any are given.
    """
    try:
        version = api.ask("GET", "/version")["gitVersion"]
    except (EngineSilent, EngineRefused) as error:
        yield ClusterFact("api", False, error.message, error.hint)
        return
    yield ClusterFact("api", True, f"Kubernetes {version} at {api.server}")
    missing = [right for right in _rights(NEEDED) if not _may(api, right)]
    fix = f"shardmill kubernetes render role --set namespace={api.namespace} | kubectl apply -f -"
    words = ", ".join(f"{verb} {resource}" for _, resource, verb in missing)
    yield ClusterFact("rights", not missing, f"missing: {words}" if missing else "all that are needed", fix)
    yield from find_fronts(api)
    gpus = _gpus(api, options)
    yield gpus
    if options is not None and not missing and gpus.ok:
        for account in accounts or [options.service_account]:
            yield from _check_pod(api, replace(options, service_account=account), place)


def _rights(rights: dict[tuple[str, str], tuple[str, ...]]) -> list[tuple[str, str, str]]:
    return [(group, resource, verb) for (group, resource), verbs in rights.items() for verb in verbs]


def _may(api: ClusterApi, right: tuple[str, str, str]) -> bool:
    group, whole, verb = right
    resource, _, below = whole.partition("/")
    asked = {"group": group, "resource": resource, "subresource": below, "verb": verb, "namespace": api.namespace}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = api.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def find_fronts(api: ClusterApi) -> Iterator[ClusterFact]:
    """Kinds of objects that some fronts need; a cluster without them runs Jobs."""
    for group, (kind, front) in _FRONTS.items():
        offered = (api.find(f"/apis/{group}") or {}).get("resources") or ()
        there = any(each["name"] == kind for each in offered)
        said = "installed" if there else f"not installed: {front} cannot be used"
        yield ClusterFact(group.partition("/")[0], True, said)


def _gpus(api: ClusterApi, options: PodOptions | None) -> ClusterFact:
    resource, wanted = (options.gpu_resource, options.gpus) if options is not None else ("nvidia.com/gpu", 0)
    if not _may(api, ("", "nodes", "list")):
        return ClusterFact("gpus", True, "unknown: nodes may not be listed")
    most = most_gpus(api, resource)
    said = f"the largest node has {most} {resource}" + (f", a pod asks for {wanted}" if wanted else "")
    if options is not None and most < wanted:
        pools = _node_pools(api)
        if fit := [str(pool["metadata"]["name"]) for pool in pools if _may_make(pool, options)]:
            return ClusterFact("gpus", True, f"{said}; the node pool {fit[0]} may make one that has them")
        # Pools without any GPU say nothing of nodes that come from elsewhere.
        elsewhere = options.gpu_resource == PLAIN_GPU and not any(
            _makes(pool, replace(options, gpus=1)) for pool in pools
        )
        if pools and not (elsewhere and options.wait_s):
            said += f", nor may one of the {len(pools)} node pools make one that has them"
            fix = f"kubectl get nodepools; then --set gpu_resource=…, now {resource}, gpus=… or selector=…"
            return ClusterFact("gpus", False, said, fix)
        if options.wait_s:
            return ClusterFact("gpus", True, f"{said}; waiting up to {options.wait_s} s for one that has them")
    fix = "Ask for less with --set gpus=…, add a pool of nodes, or wait for a node: --set wait_s=600"
    return ClusterFact("gpus", most >= wanted, said, fix)


def _node_pools(api: ClusterApi) -> list[Json]:
    """Karpenter's pools of nodes, if there are some and they may be listed."""
    path = "/apis/karpenter.sh/v1"
    offered = (api.find(path) or {}).get("resources") or ()
    if not any(each["name"] == "nodepools" for each in offered) or not _may(api, _POOLS):
        return []
    return list(api.items(f"{path}/nodepools")[0])


def _may_make(pool: Json, options: PodOptions) -> bool:
    """Whether a node of this pool may have such GPUs, and the labels that the pod asks for."""
    template = pool["spec"].get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    wanted = (template.get("spec") or {}).get("requirements") or ()
    allowed = {each["key"]: each.get("values") or () for each in wanted if each["operator"] == "In"}
    chosen = all(
        labels.get(name) == value or value in allowed.get(name, ())
        for name, value in options.selector.items()
        if _is_own(name)
    )
    return chosen and _makes(pool, options)


def _makes(pool: Json, options: PodOptions) -> bool:
    """Whether a node of this pool may have as many GPUs as a pod asks for: by its limits, taints and requirements."""
    limits, spec = pool["spec"].get("limits") or {}, (pool["spec"].get("template") or {}).get("spec") or {}
    most = amount(str(limits[options.gpu_resource])) if options.gpu_resource in limits else None
    meant = any(each["key"] == options.gpu_resource for each in spec.get("taints") or ())
    for each in spec.get("requirements") or ():
        # Karpenter's labels are about whole GPUs.
        if each["operator"] == "DoesNotExist" or options.gpu_resource != PLAIN_GPU:
            continue
        meant = meant or "instance-gpu-" in each["key"]
        if each["key"].endswith("/instance-gpu-count") and each["operator"] in ("In", "Lt"):
            counts = [int(value) - (each["operator"] == "Lt") for value in each["values"]]
            most = min(max(counts), max(counts) if most is None else most)
    return most >= options.gpus if most is not None else meant


def _is_own(label: str) -> bool:
    """Whether a label is the user's: Karpenter and the cloud set others when they make a node."""
    domain = label.rpartition("/")[0]
    return not domain.endswith(("kubernetes.io", "k8s.io", "karpenter.sh", "karpenter.k8s.aws"))


def _check_pod(api: ClusterApi, options: PodOptions, place: str) -> Iterator[ClusterFact]:
    """Start a pod as a run's would be, which looks at a place in the store."""
    name = f"shardmill-check-{uuid.uuid4().hex[:8]}"
    pod = make_pod(options, ["kubernetes", "probe", *([place] if place else [])], instance=name, component="check")
    job = RunJob(api, name, name)
    manifest: Json = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {RUN: name}, "labels": pod["metadata"]["labels"]},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": 60, "template": pod},
    }
    try:
        api.ask("POST", api.path(JOBS), manifest)
    except (EngineRefused, EngineSilent) as error:
        yield ClusterFact("pod", False, error.message, error.hint)
        return
    try:
        yield from _judge_pod(_wait_for_pod(api, name, options), options, place)
    except (EngineRefused, EngineSilent) as error:
        yield ClusterFact("pod", False, error.message, error.hint)
    finally:
        job.delete(options.grace_s)


def _judge_pod(end: PodEnd, options: PodOptions, place: str) -> Iterator[ClusterFact]:
    who = f"a pod of the account {options.service_account}" if options.service_account else "a pod"
    yield ClusterFact("pod", True, f"{options.image} started as user 1000")
    if end.status == 0:
        if place:
            yield ClusterFact("store", True, f"{who} reads and writes {place}")
        return
    why = failure(0, f"ended with status {end.status}", end.lines)
    said = f"{who}: {why.message}" if options.service_account else why.message
    yield ClusterFact("store" if place else "image", False, said, why.hint)


def _wait_for_pod(api: ClusterApi, job: str, options: PodOptions) -> PodEnd:
    """How the pod of a Job ended; raises why it cannot start."""
    watch, began = StartWatch(api, job, options.wait_s), time.monotonic()
    while True:
        pods, _ = api.items(api.path("pods"), labelSelector=f"batch.kubernetes.io/job-name={job}")
        for pod in pods:
            if (end := end_of_pod(pod)) is not None and has_begun(pod):
                return end
        troubles = watch.look(pods, any(map(has_begun, pods)), 1)
        patience_s = _NODE_S if any(each.awaits_node for each in troubles) else _POD_S
        # No waiting helps once the autoscaler has said that it has no such node.
        waits_s = 0 if any(each.no_node for each in troubles) else options.wait_s
        if time.monotonic() - began > max(patience_s, waits_s):
            why = str(troubles[0]) if troubles else "it has not ended"
            raise EngineRefused(f"The pod of the check: {why}", hint=f"kubectl -n {api.namespace} describe job {job}")
        time.sleep(_LOOK_S)
