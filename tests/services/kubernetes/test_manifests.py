"""Every manifest that we make or ship: taken by a real API server, strictly, and free of what a schema cannot see."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardmill.engines.kubernetes.argo import ACCOUNT, EMBED_PARALLEL, TASKS, make_template, make_workflow
from shardmill.engines.kubernetes.options import PodOptions, PodVolume
from shardmill.engines.kubernetes.render import KINDS, REFRESHES, render, render_refresh
from shardmill.plan.spec import make_execution, make_spec
from tests.support.chart import CASES, VALUES, merge_values, render_chart
from tests.support.kube_cluster import KubeCluster
from tests.support.manifest_lint import lint
from tests.support.shipped import assert_the_readers_own, copy_for_reader
from tools.manifests import HOME, OVERLAYS, make_files

pytestmark = pytest.mark.services

SPEC = {"source": "s3://bucket/in.jsonl.gz", "text": "body", "params": {"model": "s3://bucket/model", "dims": 64}}
PODS: dict[str, dict[str, Any]] = {
    "plain": {"image": "example.org/shardmill:1"},
    "all": {
        "image": "example.org/shardmill@sha256:" + "a" * 64,
        "gpus": 2,
        "cpu": "4",
        "memory": "64Gi",
        "shm": "8Gi",
        "scratch": "100Gi",
        "cache": "pvc:models",
        "selector": "pool=a100",
        "tolerations": "nvidia.com/gpu,spot=true:NoSchedule",
        "spread": "kubernetes.io/hostname",
        "secret": "keys",
        "pull_secret": "registry",
        "priority_class": "batch",
        "labels": "team=search",
        "env": "AWS_REGION=eu-west-1",
    },
    "image-volume": {"image": "example.org/shardmill:1", "cache": "image:example.org/models:1"},
}


_UNPLACED = ("Namespace", "NodePool", "EC2NodeClass", "ClusterRole", "ClusterRoleBinding")


def _check(cluster: KubeCluster, namespace: str, objects: list[Any]) -> None:
    """Apply them all in one request each, without keeping them, in a namespace that exists."""
    for each in objects:
        if "namespace" in each["metadata"] or each["kind"] not in _UNPLACED:
            each["metadata"]["namespace"] = namespace
        for subject in each.get("subjects", ()):
            if subject["kind"] == "ServiceAccount":
                subject["namespace"] = namespace
    cluster.kubectl(
        *("apply", "--dry-run=server", "--validate=strict", "-f", "-"),
        feed=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    )


@pytest.fixture(scope="module")
def job_sets(cluster: KubeCluster) -> Iterator[None]:
    """The API server knows the kind JobSet, whose controller is not there."""
    kind = json.loads((Path(__file__).parents[2] / "data" / "jobset.json").read_text())
    name = kind["metadata"]["name"]
    if name in cluster.kubectl("get", "crd", "-o", "name"):
        yield
        return
    cluster.apply(kind)
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")
    yield
    cluster.kubectl("delete", "crd", name, "--wait=false")


@pytest.mark.parametrize("pod", PODS)
def test_what_is_rendered_is_taken(cluster: KubeCluster, namespace: str, job_sets: None, pod: str) -> None:
    engine = {**PODS[pod], "namespace": namespace}
    objects = []
    for kind in KINDS:
        if kind == "pool":
            engine.pop("gpus", None)
        spec = make_spec(SPEC, {"engine": "kubernetes", "workers": 4, "engine_options": engine})
        made = render(kind, spec, "s3://bucket/runs/a")
        assert lint(made, secrets=["keys"]) == []
        objects += made
    for kind in REFRESHES:
        execution = make_execution({"engine": "kubernetes", "engine_options": {**engine, "timezone": "Europe/Berlin"}})
        made = render_refresh(kind, execution, "s3://bucket/runs/a")
        assert lint(made, secrets=["keys"]) == []
        objects += made[-1:]
    template = make_template(TASKS[-1], PodOptions("example.org/shardmill:1", namespace))
    workflow = make_workflow(f"s3://bucket/{'long/' * 40}run", template, 500, namespace)
    assert lint([workflow]) == []
    assert workflow["spec"]["workflowTemplateRef"]["name"] == EMBED_PARALLEL
    _check(cluster, namespace, [*objects, template, workflow])


def _kustomize(cluster: KubeCluster, place: Path) -> list[Any]:
    return list(yaml.safe_load_all(cluster.kubectl("kustomize", str(place))))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_shipped_is_taken(cluster: KubeCluster, namespace: str, overlay: str) -> None:
    objects = _kustomize(cluster, HOME / "overlays" / overlay)
    assert lint(objects) == []
    _check(cluster, namespace, objects)


@pytest.fixture(scope="module")
def of_a_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_for_reader(tmp_path_factory.mktemp("reader") / "kubernetes")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_one_file_is_all_that_a_reader_changes(cluster: KubeCluster, of_a_reader: Path, overlay: str) -> None:
    assert_the_readers_own(_kustomize(cluster, of_a_reader / "overlays" / overlay), OVERLAYS[overlay])


def test_the_chart_makes_the_same_objects(cluster: KubeCluster, of_a_reader: Path) -> None:
    """Of the same folder, image and namespace; the chart leaves the namespace itself to Helm."""
    pairs = {"keda": {}, "hpa": {"workers": {"scaler": "hpa"}}, "argo": {"argo": {"enabled": True}}}
    pairs["argo"] |= {"workers": {"scaler": "none"}, "monitor": {"enabled": False}}
    for overlay, values in pairs.items():
        shipped = {
            (o["kind"], o["metadata"]["name"]): o for o in _kustomize(cluster, of_a_reader / "overlays" / overlay)
        }
        shipped.pop(("Namespace", "team"))
        made = {
            (o["kind"], o["metadata"]["name"].removesuffix("-team")): o
            for o in render_chart(merge_values(VALUES, values))
        }
        assert made.keys() == shipped.keys()
        for name, each in made.items():
            if not name[0].startswith("Cluster"):
                assert each == shipped[name], name


@pytest.mark.parametrize("case", CASES)
def test_what_the_chart_makes_is_taken(cluster: KubeCluster, namespace: str, case: str) -> None:
    _check(cluster, namespace, render_chart(merge_values(VALUES, CASES[case])))


def test_what_is_shipped_is_what_the_code_makes() -> None:
    made = make_files()
    assert {path: (HOME / path).read_text() for path in made} == made
    there = {str(path.relative_to(HOME)) for path in HOME.rglob("*.yaml")}
    assert there == {*made}, "run: python -m tools.manifests"


def _break(change: Callable[[dict[str, Any]], object]) -> list[str]:
    made = make_template(TASKS[-1], PodOptions("example.org/shardmill:1", cache=PodVolume("pvc", "models")))
    account = {"kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    assert lint([made, account]) == []
    change(made["spec"])
    return lint([made, account])


def test_the_lint_sees_what_a_schema_does_not() -> None:
    def step(spec: dict[str, Any], name: str) -> Any:
        (found,) = [each for each in spec["templates"] if each["name"] == name]
        return found.get("container", found)

    def said(change: Callable[[dict[str, Any]], object]) -> str:
        return " ".join(_break(change))

    assert "there is no template nothing" in said(lambda spec: spec.update(onExit="nothing"))
    assert "may run as root" in said(lambda spec: spec.update(securityContext={}))
    assert "no volume cache" in said(lambda spec: spec.update(volumes=spec["volumes"][:1]))
    assert "command is not set" in said(lambda spec: step(spec, "work").pop("command"))
    assert "not pinned" in said(lambda spec: step(spec, "work").update(image="shardmill:latest"))
    assert "no workflow.parameters.x" in said(
        lambda spec: step(spec, "work")["args"].append("{{workflow.parameters.x}}")
    )
    assert "mixes" in said(lambda spec: step(spec, "work")["args"].append("echo {{workflow.parameters.run}}"))
    assert "no task nobody" in said(lambda spec: step(spec, "embed")["dag"]["tasks"][1].update(depends="nobody"))
    assert "too little time" in said(lambda spec: spec.update(podSpecPatch="{}"))
