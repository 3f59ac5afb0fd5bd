"""Write deploy/kubernetes and the objects of deploy/chart: what `shardmill kubernetes render` makes, to be installed.

python -m tools.manifests
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from shardmill._version import __version__
from shardmill.engines.kubernetes.argo import ACCOUNT as ARGO_ACCOUNT
from shardmill.engines.kubernetes.argo import EMBED_PARALLEL, TASKS, make_cron
from shardmill.engines.kubernetes.monitor import MONITOR, TOKEN_KEY, make_monitor
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.pod import make_labels
from shardmill.engines.kubernetes.render import make_all_templates, to_yaml
from shardmill.engines.kubernetes.rights import make_role
from shardmill.engines.kubernetes.scaling import (
    MACHINES,
    POOL,
    POOL_LABEL,
    adapter_rule,
    make_deployment,
    make_node_pools,
    make_scaled_job,
)

HOME = Path(__file__).parents[1] / "deploy" / "kubernetes"
# The chart has the same objects as files; its templates put in the values.
CHART = HOME.parent / "chart"
RULES = HOME.parent / "monitoring" / "rules.yml"
NAMESPACE, ACCOUNT = "shardmill", "shardmill"
# A reader names the folder, the image and the namespace once, in `settings`.
FOLDER, IMAGE = "$(SHARDMILL_FOLDER)", f"shardmill:{__version__}"
# Keys of stores and databases, if the reader makes a Secret of this name.
KEYS = "shardmill-keys"
# What a machine with one T4 or L4 and 16 GB has left for a pod.
CPU, MEMORY = "2", "12Gi"
_SETTINGS = {"name": "SHARDMILL_FOLDER", "valueFrom": {"configMapKeyRef": {"name": "shardmill", "key": "folder"}}}
_HEAD = "# Made by: python -m tools.manifests\n"
_DEPLOYMENT, _SCALED = "/spec/template/spec", "/spec/jobTargetRef/template/spec"
Json = dict[str, Any]

# What is applied as it is, by name; a reader composes others from the same parts.
OVERLAYS: dict[str, tuple[str, ...]] = {
    "monitor": ("pool", "monitor"),
    "hpa": ("pool", "monitor", "hpa"),
    "keda": ("monitor", "keda"),
    "eks": ("monitor", "keda", "eks"),
    "gke": ("pool", "monitor", "gke"),
    "gke-keda": ("monitor", "keda", "gke"),
    "spot": ("pool", "monitor", "spot"),
    "keda-spot": ("monitor", "keda", "spot"),
    "eks-spot": ("monitor", "keda", "eks", "spot"),
    "gke-keda-spot": ("monitor", "keda", "gke", "spot"),
    "argo": ("argo",),
    "argo-nightly": ("argo", "nightly"),
    "eks-argo": ("argo", "eks"),
    "gke-argo": ("argo", "gke"),
}


def make_objects() -> dict[str, list[Json]]:
    """Everything that is shipped, by the file that has it, without a namespace."""
    pod = PodOptions(IMAGE, NAMESPACE, cpu=CPU, memory=MEMORY, service_account=ACCOUNT, spread="kubernetes.io/hostname")
    argo = PodOptions(IMAGE, cpu=CPU, memory=MEMORY)
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "labels": make_labels(ACCOUNT)},
        "automountServiceAccountToken": False,
    }
    deployment, scaler = make_deployment(FOLDER, pod)
    objects = {
        "account": [account],
        "rights": make_role(NAMESPACE),
        "pool": [deployment],
        "hpa": [scaler],
        "monitor": make_monitor(FOLDER, pod),
        "keda": make_scaled_job(FOLDER, pod),
        "argo": make_all_templates(argo),
        "nightly": [_nightly(argo)],
    }
    return {name: [_without_namespace(_configured(each)) for each in made] for name, made in objects.items()}


def make_files() -> dict[str, str]:
    """Every file below deploy/kubernetes, by its path."""
    objects = make_objects()
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": _RESTRICTED}}
    files = {
        "base/kustomization.yaml": _yaml([_kustomization(resources=["namespace.yaml", "account.yaml", "rights.yaml"])]),
        "base/namespace.yaml": _yaml([space]),
        "base/account.yaml": _yaml(objects.pop("account")),
        "base/rights.yaml": _yaml(objects.pop("rights")),
        "settings/kustomization.yaml": _SETTINGS_HEAD + to_yaml([_settings(objects["monitor"])]),
        "settings/places.yaml": _yaml([_PLACES_OF_IMAGES]),
        "components/hpa/prometheus-adapter-values.yaml": _yaml([adapter_rule()]),
        "components/eks/nodes.yaml": _yaml(make_node_pools("my-cluster", "KarpenterNodeRole-my-cluster")),
    }
    for name, made in objects.items():
        files[f"components/{name}/kustomization.yaml"] = _yaml([_component(resources=[f"{name}.yaml"])])
        files[f"components/{name}/{name}.yaml"] = _yaml(made)
    for name, content in _changes([*objects["argo"], *objects["nightly"]]).items():
        files[f"components/{name}/kustomization.yaml"] = _yaml([_component(**content)])
    for name, parts in OVERLAYS.items():
        components = [f"../../components/{part}" for part in parts]
        whole = _kustomization(resources=["../../base"], components=[*components, "../../settings"])
        files[f"overlays/{name}/kustomization.yaml"] = _yaml([whole])
    return files


def _changes(workflows: list[Json]) -> dict[str, Json]:
    """What a cloud, spot nodes, or a cluster without GPUs change in the objects that are there."""
    spot_taint = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    preferred = [_prefer("karpenter.sh/capacity-type", "spot"), _prefer("cloud.google.com/gke-spot", "true")]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    small = {POOL_LABEL: next(iter(MACHINES))}

    def on_nodes(*operations: Json) -> list[Json]:
        """Patches of whatever asks for a GPU."""
        return [*_patch_pods(*operations), *_patch_steps(workflows, lambda step: operations if _has_gpu(step) else ())]

    return {
        "eks": {
            "resources": ["nodes.yaml"],
            "patches": [
                *on_nodes(_add("nodeSelector", small)),
                _annotate("eks.amazonaws.com/role-arn", "arn:aws:iam::111122223333:role/shardmill"),
            ],
        },
        "gke": {
            "patches": [
                *on_nodes(_add("nodeSelector", {"cloud.google.com/gke-accelerator": "nvidia-l4"})),
                _annotate("iam.gke.io/gcp-service-account", "shardmill@my-project.iam.gserviceaccount.com"),
            ]
        },
        "spot": {"patches": on_nodes(_add("tolerations/-", spot_taint), _add("affinity", affinity))},
        "cpu": {
            "patches": [
                *_patch_pods(
                    {"op": "replace", "path": "containers/0/args/3", "value": "cpu"}, *_without_gpu("containers/0")
                ),
                *_patch_steps(workflows, _step_on_cpu),
            ]
        },
    }


def _has_gpu(step: Json) -> bool:
    return "nvidia.com/gpu" in step.get("container", {}).get("resources", {}).get("limits", {})


def _without_gpu(container: str) -> list[Json]:
    paths = (f"{container}/resources/requests/nvidia.com~1gpu", f"{container}/resources/limits/nvidia.com~1gpu")
    return [{"op": "remove", "path": path} for path in (*paths, "tolerations")]


def _step_on_cpu(step: Json) -> list[Json]:
    words = step.get("container", {}).get("args", [])
    made = [
        {"op": "replace", "path": f"container/args/{i}", "value": "--device=cpu"}
        for i, word in enumerate(words)
        if word == "--device=cuda"
    ]
    return [*made, *(_without_gpu("container") if _has_gpu(step) else ())]


_SETTINGS_HEAD = f"""{_HEAD}# Yours: the namespace, the image and the folder of the runs. Every overlay reads them here.
"""
# Where Argo's objects have images: kustomize knows only those of pods.
_PLACES_OF_IMAGES = {
    "images": [
        {"path": "spec/templates/container/image", "kind": "WorkflowTemplate"},
        {"path": "spec/workflowSpec/templates/container/image", "kind": "CronWorkflow"},
    ]
}


def _settings(monitor: list[Json]) -> Json:
    (arguments,) = (
        each["spec"]["template"]["spec"]["containers"][0]["args"] for each in monitor if each["kind"] == "Deployment"
    )
    hosts = [i for i, argument in enumerate(arguments) if f".{NAMESPACE}.svc" in argument]
    by_name = {"delimiter": ".", "index": 1}
    # The namespace is part of the address at which KEDA, and people, reach the monitor.
    targets = [
        {"select": {"kind": "ScaledJob"}, "fieldPaths": ["spec.triggers.*.metadata.url"], "options": by_name},
        {
            "select": {"kind": "Deployment", "name": MONITOR},
            "fieldPaths": [f"spec.template.spec.containers.0.args.{i}" for i in hosts],
            "options": by_name,
        },
    ]
    source = {"kind": "ServiceAccount", "name": ACCOUNT, "fieldPath": "metadata.namespace"}
    return _component(
        namespace=NAMESPACE,
        images=[{"name": "shardmill", "newName": "registry.example.org/shardmill", "newTag": __version__}],
        configMapGenerator=[
            {
                "name": "shardmill",
                "literals": ["folder=s3://my-bucket/runs"],
                "options": {"disableNameSuffixHash": True},
            }
        ],
        configurations=["places.yaml"],
        replacements=[{"source": source, "targets": targets}],
    )


_RESTRICTED = {
    # Our pods are restricted; those of Argo have containers of its own.
    "pod-security.kubernetes.io/enforce": "baseline",
    "pod-security.kubernetes.io/warn": "restricted",
    "app.kubernetes.io/name": "shardmill",
}


def _nightly(options: PodOptions) -> Json:
    (task,) = [task for task in TASKS if task.name == EMBED_PARALLEL]
    made = make_cron(task, options, "0 2 * * *")
    # It is there to be looked at, and filled in: kubectl patch cronworkflow … suspend=false.
    made["spec"]["suspend"] = True
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
    """Let the pods of an object read the folder from the ConfigMap, and keys from a Secret if there is one."""
    spec = made.get("spec", {})
    spec = spec.get("workflowSpec", spec)
    template = spec.get("template") or spec.get("jobTargetRef", {}).get("template")
    containers = [each["container"] for each in spec.get("templates", ()) if "container" in each]
    for container in template["spec"]["containers"] if template else ():
        container["env"] = [_SETTINGS, *container["env"]]
        containers.append(container)
    for container in containers:
        container["envFrom"] = [{"secretRef": {"name": KEYS, "optional": True}}]
    return made


def _without_namespace(made: Json) -> Json:
    """The settings name it."""
    for each in (made["metadata"], *made.get("subjects", ())):
        each.pop("namespace", None)
    return made


def _prefer(key: str, value: str) -> Json:
    return {
        "weight": 100,
        "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]},
    }


def _add(path: str, value: Any) -> Json:
    return {"op": "add", "path": path, "value": value}


def _patch_pods(*operations: Json) -> list[Json]:
    """Patches of the pods of the pool, whichever object makes them."""
    made = []
    for kind, place in (("Deployment", _DEPLOYMENT), ("ScaledJob", _SCALED)):
        whole = [{**each, "path": f"{place}/{each['path']}"} for each in operations]
        made.append({"target": {"kind": kind, "name": POOL}, "patch": to_yaml([whole])})
    return made


def _patch_steps(workflows: list[Json], change: Callable[[Json], Iterable[Json]]) -> list[Json]:
    """Patches of the steps of Argo's templates."""
    made = []
    for each in workflows:
        inside = "workflowSpec" in each.get("spec", {})
        place = "/spec/workflowSpec/templates" if inside else "/spec/templates"
        steps = (each["spec"]["workflowSpec"] if inside else each.get("spec", {})).get("templates", ())
        whole = [
            {**operation, "path": f"{place}/{i}/{operation['path']}"}
            for i, step in enumerate(steps)
            for operation in change(step)
        ]
        if whole:
            made.append({"target": {"kind": each["kind"], "name": each["metadata"]["name"]}, "patch": to_yaml([whole])})
    return made


def _annotate(key: str, value: str) -> Json:
    """Both accounts that reach the store: that of the pool, and that of Argo's pods."""
    operation = [{"op": "add", "path": "/metadata/annotations", "value": {key: value}}]
    return {"target": {"kind": "ServiceAccount", "name": f"{ACCOUNT}|{ARGO_ACCOUNT}"}, "patch": to_yaml([operation])}


def _kustomization(**content: Any) -> Json:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **content}


def _component(**content: Any) -> Json:
    return {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", **content}


def _yaml(objects: list[Json]) -> str:
    return _HEAD + to_yaml(objects)


def make_chart_files() -> dict[str, str]:
    """The objects of the chart, by their paths in it."""
    objects = make_objects() | {"prometheus": _for_prometheus()}
    return {f"objects/{name}.yaml": _yaml(made) for name, made in objects.items()}


def _for_prometheus() -> list[Json]:
    """What the Prometheus operator reads: where the monitor is, and the rules that are shipped."""
    labels = make_labels(MONITOR, "monitor")
    chosen = {name: labels[name] for name in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}
    token = {"type": "Bearer", "credentials": {"name": MONITOR, "key": TOKEN_KEY}}
    metadata = {"name": MONITOR, "labels": labels}
    scraped = {"port": "http", "path": "/metrics", "interval": "15s", "authorization": token}
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": metadata,
            "spec": {"selector": {"matchLabels": chosen}, "endpoints": [scraped]},
        },
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": metadata,
            "spec": yaml.safe_load(RULES.read_text()),
        },
    ]


def main() -> None:
    for home in (HOME, CHART / "objects"):
        shutil.rmtree(home, ignore_errors=True)
    for home, files in ((HOME, make_files()), (CHART, make_chart_files())):
        for path, text in files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)


if __name__ == "__main__":
    main()
