"""The Helm chart, rendered as Helm does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product
from typing import Any

from tests.support.libraries import needed
from tools.manifests import CHART

FOLDER, IMAGE = "s3://data/runs", "registry.corp.example/ml/mill:7"
VALUES: dict[str, Any] = {
    "folder": FOLDER,
    "image": {"registry": "registry.corp.example/ml", "repository": "mill", "tag": "7"},
}
NIGHT = {
    "source": "s3://data/new/*.jsonl",
    "text": "body",
    "model": "s3://data/m",
    "run": FOLDER,
    "merged": "s3://data/r",
}
# Values that the guide names, and pairs of them.
CASES: dict[str, dict[str, Any]] = {
    "keda": {},
    "hpa": {"workers": {"scaler": "hpa"}},
    "none": {"workers": {"scaler": "none"}, "monitor": {"enabled": False}},
    "eks": {
        "accounts": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/mill"}},
        "workers": {"nodeSelector": {"shardmill/pool": "shardmill-small"}},
    },
    "gke-spot": {
        "accounts": {"annotations": {"iam.gke.io/gcp-service-account": "mill@project.iam.gserviceaccount.com"}},
        "workers": {
            "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
            "tolerations": [{"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"}],
        },
    },
    "argo": {
        "workers": {"scaler": "none"},
        "argo": {"enabled": True, "nightly": {"enabled": True, "parameters": NIGHT}},
    },
    "argo-keda": {"argo": {"enabled": True}, "monitor": {"prometheus": True}},
    "openshift": {"openshift": True, "workers": {"scaler": "hpa"}},
    "cpu": {"workers": {"scaler": "hpa", "device": "cpu"}, "argo": {"enabled": True}},
    "air-gap": {
        "image": {"digest": "sha256:" + "a" * 64, "pullSecret": "registry", "registry": "mirror.corp.example"},
        "lightImage": {"repository": "mill-light", "tag": "7"},
        "secret": "",
    },
}


def combinations() -> Iterator[dict[str, Any]]:
    """Each value that decides which objects there are, and what kind of pods, with each other one; clouds in turn."""
    whole = product(("keda", "hpa", "none"), ("cuda", "cpu"), ("", "templates", "nightly"), (False, True))
    for (scaler, device, argo, openshift), cloud in zip(whole, cycle(("eks", "gke-spot", "", "", "eks"))):
        argo_values = {"enabled": bool(argo), "nightly": {"enabled": argo == "nightly", "parameters": NIGHT}}
        given = {"openshift": openshift, "workers": {"scaler": scaler, "device": device}, "argo": argo_values}
        yield merge_values(VALUES, CASES[cloud] if cloud else {}, given, {"monitor": {"prometheus": bool(cloud)}})


def merge_values(*several: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for values in several:
        for name, value in values.items():
            known = made.get(name)
            made[name] = {**known, **value} if isinstance(value, dict) and isinstance(known, dict) else value
    return made


def render_chart(values: dict[str, Any], namespace: str = "team") -> list[dict[str, Any]]:
    """The objects that Helm would apply."""
    yaml = needed("yaml")
    with needed("helm_python.chart").Chart.load(CHART) as chart:
        made = chart.render(values, name="mill", namespace=namespace)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = [yaml.load_all(text, Loader=loader) for path, text in made.items() if path.endswith(".yaml")]
    return [each for objects in files for each in objects if each]
