"""The shipped overlays with a reader's own names, and what each of their pods must have: one table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill._version import __version__
from tests.support.chart import FOLDER, IMAGE
from tools.manifests import HOME, NAMESPACE

Json = dict[str, Any]
Kustomize = Callable[[Path], list[Any]]
GPU, SPOT = "nvidia.com/gpu", "cloud.google.com/gke-spot"
# What a pod asks for, by what it is.
ASKED: dict[str, Json] = {
    "worker": {"cpu": "2", "memory": "12Gi", GPU: "1"},
    "cpu worker": {"cpu": "2", "memory": "12Gi"},
    "light": {"cpu": "1", "memory": "4Gi"},
    "monitor": {"cpu": "100m", "memory": "1Gi"},
}
ROLES = {"eks": "eks.amazonaws.com/role-arn", "gke": "iam.gke.io/gcp-service-account"}
NODES = {"eks": {"shardmill/pool": "shardmill-small"}, "gke": {"cloud.google.com/gke-accelerator": "nvidia-l4"}}
# Lists of parts that no overlay has, and that a reader may write.
OTHERS = (
    ("argo", "nightly", "eks", "spot"),
    ("argo", "monitor", "keda", "gke", "spot"),
    ("pool", "monitor", "hpa", "eks", "spot"),
    ("pool", "monitor", "hpa", "argo", "nightly", "cpu"),
)


@dataclass(frozen=True)
class Container:
    """A container of an object, with the parts of its pod that decide where it runs and as whom."""

    name: str
    image: str
    account: str
    tolerated: frozenset[str]
    nodes: Mapping[str, str]
    prefers: bool
    asked: Mapping[str, str]
    words: tuple[str, ...]
    in_argo: bool


def containers_of(objects: Iterable[Json]) -> Iterator[Container]:
    for made in objects:
        spec = made.get("spec", {})
        flow = spec.get("workflowSpec", spec)
        template = spec.get("template") or spec.get("jobTargetRef", {}).get("template") or {}
        pods = [(step["name"], {**flow, **step}, step["container"]) for step in _steps(flow)]
        pods += [(each["name"], template["spec"], each) for each in template.get("spec", {}).get("containers", ())]
        for name, pod, container in pods:
            yield Container(
                f"{made['kind']}/{made['metadata']['name']}/{name}",
                container["image"],
                pod["serviceAccountName"],
                frozenset(each["key"] for each in pod.get("tolerations", ())),
                pod.get("nodeSelector", {}),
                "affinity" in pod,
                container["resources"]["requests"],
                tuple(container["args"]),
                "templates" in flow,
            )


def _steps(flow: Json) -> list[Json]:
    return [step for step in flow.get("templates", ()) if "container" in step]


def copy_for_reader(home: Path, namespace: str = "team", folder: str = FOLDER) -> Path:
    """The shipped folder with one file changed, as the guide says: namespace, image and folder of the runs."""
    shutil.copytree(HOME, home)
    settings = home / "settings" / "kustomization.yaml"
    text, name = settings.read_text(), IMAGE.rpartition(":")[0]
    for old, new in (
        (f"namespace: {NAMESPACE}\n", f"namespace: {namespace}\n"),
        ("registry.example.org/shardmill", name),
        (f"newTag: {__version__}", f"newTag: '{IMAGE.rpartition(':')[2]}'"),
        ("s3://my-bucket/runs", folder),
    ):
        assert old in text
        text = text.replace(old, new)
    settings.write_text(text)
    return home


def render_parts(home: Path, parts: tuple[str, ...], kustomize: Kustomize) -> list[Any]:
    """What a list of parts makes."""
    place = home / "overlays" / ("own-" + "-".join(parts))
    place.mkdir()
    whole = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../base"],
        "components": [*(f"../../components/{part}" for part in parts), "../../settings"],
    }
    (place / "kustomization.yaml").write_text(json.dumps(whole))
    try:
        return kustomize(place)
    finally:
        shutil.rmtree(place)


def assert_the_readers_own(objects: list[Json], parts: tuple[str, ...]) -> None:
    """Image, namespace and folder are the reader's; accounts, tolerations, nodes and requests those of the table."""
    said = json.dumps(objects)
    assert ".shardmill.svc" not in said
    if not {"nightly", "eks"} & {*parts}:
        assert "my-bucket" not in said
    spaces = {made["metadata"].get("namespace", "team") for made in objects}
    spaces |= {each["namespace"] for made in objects for each in made.get("subjects", ())}
    assert spaces == {"team"}
    cloud = next((part for part in parts if part in ROLES), "")
    for made in objects:
        if made["kind"] == "ServiceAccount" and made["metadata"]["name"] != "shardmill-submitter":
            assert {*made["metadata"].get("annotations", ())} == ({ROLES[cloud]} if cloud else set())
    found = [*containers_of(objects)]
    for each in found:
        kind = _kind_of(each)
        assert each.image == IMAGE, each.name
        assert each.account == ("shardmill-argo" if each.in_argo else "shardmill"), each.name
        assert each.asked == ASKED[kind], each.name
        on_gpu = kind == "worker"
        assert each.tolerated == {*[GPU] * on_gpu, *[SPOT] * (on_gpu and "spot" in parts)}, each.name
        assert each.nodes == (NODES.get(cloud, {}) if on_gpu else {}), each.name
        assert each.prefers == (on_gpu and "spot" in parts), each.name
    workers = [each for each in found if "worker" in _kind_of(each)]
    assert len(workers) >= len({"pool", "keda"} & {*parts}) + 5 * ("argo" in parts)
    if "cpu" in parts:
        assert "cuda" not in said
        assert not any(GPU in each.asked for each in found)


def _kind_of(container: Container) -> str:
    """By what it runs: a template's `finish` only ends what others began."""
    if GPU in container.asked:
        return "worker"
    if container.words[0] == "monitor":
        return "monitor"
    step = container.name.rpartition("/")[2]
    heavy = step in ("worker", "work", "train", "embed", "answer", "summarize")
    return "cpu worker" if heavy else "light"
