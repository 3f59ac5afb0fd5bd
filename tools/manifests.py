"""Write deploy/kubernetes: what `shardmill kubernetes render` makes, as a kustomize base and its overlays.

python -m tools.manifests
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardmill._version import __version__
from shardmill.engines.kubernetes.argo import EMBED_PARALLEL, TASKS, make_cron
from shardmill.engines.kubernetes.monitor import make_monitor
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.pod import make_labels
from shardmill.engines.kubernetes.render import make_all_templates, to_yaml
from shardmill.engines.kubernetes.rights import make_role
from shardmill.engines.kubernetes.scaling import POOL, adapter_rule, make_deployment, make_node_pools, make_scaled_job

HOME = Path(__file__).parents[1] / "deploy" / "kubernetes"
NAMESPACE, ACCOUNT = "shardmill", "shardmill"
# One place to change: the ConfigMap of the base, and the image that every overlay names.
FOLDER, IMAGE = "$(SHARDMILL_FOLDER)", f"shardmill:{__version__}"
_SETTINGS = {"name": "SHARDMILL_FOLDER", "valueFrom": {"configMapKeyRef": {"name": "shardmill", "key": "folder"}}}
_HEAD = "# Made by: python -m tools.manifests\n"
Json = dict[str, Any]


def make_files() -> dict[str, str]:
    """Every file below deploy/kubernetes, by its path."""
    inside = PodOptions(
        IMAGE, NAMESPACE, cpu="2", memory="14Gi", service_account=ACCOUNT, spread="kubernetes.io/hostname"
    )
    deployment, scaler = (_configured(each) for each in _without_namespace(make_deployment(FOLDER, inside)))
    monitor = [_configured(each) for each in _without_namespace(make_monitor(FOLDER, inside))]
    scaled = [_configured(each) for each in _without_namespace(make_scaled_job(FOLDER, inside))]
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "labels": make_labels(ACCOUNT)},
        "automountServiceAccountToken": False,
    }
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": _RESTRICTED}}
    role = _without_namespace(make_role(NAMESPACE))
    no_deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": POOL}, "$patch": "delete"}
    on_gpus = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}
    gke = {
        "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    spot = {
        "tolerations": [
            *on_gpus["tolerations"],
            {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        ],
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    _prefer("karpenter.sh/capacity-type", "spot"),
                    _prefer("cloud.google.com/gke-spot", "true"),
                ]
            }
        },
    }
    identity = "eks.amazonaws.com/role-arn"
    eks_role = _annotate(identity, "arn:aws:iam::111122223333:role/shardmill")
    gke_role = _annotate("iam.gke.io/gcp-service-account", "shardmill@my-project.iam.gserviceaccount.com")
    argo = PodOptions(IMAGE, cpu="2", memory="14Gi")
    return {
        "base/kustomization.yaml": _kustomization(
            resources=["namespace.yaml", "account.yaml", "rights.yaml", "pool.yaml"],
            configMapGenerator=[
                {
                    "name": "shardmill",
                    "literals": ["folder=s3://my-bucket/runs"],
                    "options": {"disableNameSuffixHash": True},
                }
            ],
            images=[{"name": "shardmill", "newName": "registry.example.org/shardmill", "newTag": __version__}],
        ),
        "base/namespace.yaml": _yaml([space]),
        "base/account.yaml": _yaml([account]),
        "base/rights.yaml": _yaml(role),
        "base/pool.yaml": _yaml([deployment]),
        "overlays/monitor/kustomization.yaml": _kustomization(resources=["../../base", "monitor.yaml"]),
        "overlays/monitor/monitor.yaml": _yaml(monitor),
        "overlays/hpa/kustomization.yaml": _kustomization(resources=["../monitor", "autoscaler.yaml"]),
        "overlays/hpa/autoscaler.yaml": _yaml([scaler]),
        "overlays/hpa/prometheus-adapter-values.yaml": _yaml([adapter_rule()]),
        "overlays/keda/kustomization.yaml": _kustomization(
            resources=["../monitor", "scaled-job.yaml"], patches=[{"patch": to_yaml([no_deployment])}]
        ),
        "overlays/keda/scaled-job.yaml": _yaml(scaled),
        "overlays/eks/kustomization.yaml": _kustomization(
            resources=["../keda", "nodes.yaml"],
            patches=[_patch("ScaledJob", "/spec/jobTargetRef/template/spec", on_gpus), eks_role],
        ),
        "overlays/eks/nodes.yaml": _yaml(make_node_pools("my-cluster", "KarpenterNodeRole-my-cluster")),
        "overlays/gke/kustomization.yaml": _kustomization(
            resources=["../monitor"], patches=[_patch("Deployment", "/spec/template/spec", gke, POOL), gke_role]
        ),
        "overlays/spot/kustomization.yaml": _kustomization(
            resources=["../monitor"], patches=[_patch("Deployment", "/spec/template/spec", spot, POOL)]
        ),
        "argo/kustomization.yaml": _kustomization(resources=["templates.yaml", "nightly.yaml"]),
        "argo/templates.yaml": _yaml(make_all_templates(argo)),
        "argo/nightly.yaml": _yaml([_nightly(argo)]),
    }


_RESTRICTED = {
    # Our pods are restricted; those of Argo have containers of its own.
    "pod-security.kubernetes.io/enforce": "baseline",
    "pod-security.kubernetes.io/warn": "restricted",
    "app.kubernetes.io/name": "shardmill",
}


def _nightly(options: PodOptions) -> Json:
    (task,) = [task for task in TASKS if task.name == EMBED_PARALLEL]
    made = make_cron(task, options, "0 2 * * *")
    values = {
        "source": "s3://my-bucket/new/*.jsonl.gz",
        "text": "body",
        "model": "s3://my-bucket/models/encoder",
        "run": "s3://my-bucket/nightly",
        "merged": "s3://my-bucket/results",
        "workers": "4",
    }
    for each in made["spec"]["workflowSpec"]["arguments"]["parameters"]:
        each["value"] = values.get(each["name"], "")
    return made


def _configured(made: Json) -> Json:
    """Let the pods of an object read the folder from the ConfigMap."""
    spec = made.get("spec", {})
    template = spec.get("template") or spec.get("jobTargetRef", {}).get("template")
    if template:
        for container in template["spec"]["containers"]:
            container["env"] = [_SETTINGS, *container["env"]]
    return made


def _without_namespace(objects: list[Json]) -> list[Json]:
    """The kustomization sets it, except where it is part of an address."""
    for each in objects:
        each["metadata"] = {name: value for name, value in each["metadata"].items() if name != "namespace"}
    return objects


def _prefer(key: str, value: str) -> Json:
    return {
        "weight": 100,
        "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]},
    }


def _patch(kind: str, path: str, more: Json, name: str = "") -> Json:
    operations = [{"op": "add", "path": f"{path}/{key}", "value": value} for key, value in more.items()]
    return {"target": {"kind": kind, **({"name": name} if name else {})}, "patch": to_yaml([operations])}


def _annotate(key: str, value: str) -> Json:
    operation = [{"op": "add", "path": "/metadata/annotations", "value": {key: value}}]
    return {"target": {"kind": "ServiceAccount", "name": ACCOUNT}, "patch": to_yaml([operation])}


def _kustomization(**content: Any) -> str:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": NAMESPACE}
    return _yaml([{**head, **content}])


def _yaml(objects: list[Json]) -> str:
    return _HEAD + to_yaml(objects)


def main() -> None:
    for path, text in make_files().items():
        (HOME / path).parent.mkdir(parents=True, exist_ok=True)
        (HOME / path).write_text(text)


if __name__ == "__main__":
    main()
