"""The Helm chart: each set of values that the guide names makes sound objects with the reader's own names in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chart import CASES, FOLDER, IMAGE, VALUES, combinations, merge_values, render_chart
from tests.support.libraries import needed
from tests.support.manifest_lint import lint
from tools.manifests import CHART, make_chart_files

needed("yaml")
charts = needed("helm_python.chart")
errors = needed("helm_python.errors")
GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def containers_of(made: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each container of an object, and what says on which nodes it may run."""
    spec = made.get("spec", {})
    spec = spec.get("workflowSpec", spec)
    for step in spec.get("templates", ()):
        if "container" in step:
            yield step["container"], {**spec, **step}
    template = spec.get("template") or spec.get("jobTargetRef", {}).get("template") or {}
    for container in template.get("spec", {}).get("containers", ()):
        yield container, template["spec"]


def workers_of(objects: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = [each for made in objects for each in containers_of(made)]
    return [(container, pod) for container, pod in found if "nvidia.com/gpu" in str(container.get("resources"))]


@pytest.mark.parametrize("case", CASES)
def test_what_is_rendered_is_sound_and_the_readers_own(case: str) -> None:
    objects = render_chart(merge_values(VALUES, CASES[case]))
    secrets = ["registry"]
    assert lint(objects, secrets, openshift=case == "openshift") == []
    for made in objects:
        if made["kind"].startswith("Cluster"):
            assert made["metadata"]["name"].endswith("-team")
        else:
            assert made["metadata"]["namespace"] == "team"
        assert all(each["namespace"] == "team" for each in made.get("subjects", ()))
    said = str(objects)
    assert "my-bucket" not in said
    assert ".shardmill.svc" not in said
    assert FOLDER in said
    if case != "air-gap":
        images = {container["image"] for made in objects for container, _ in containers_of(made)}
        assert images <= {IMAGE}
    for container, pod in workers_of(objects):
        assert GPU in pod["tolerations"]
        assert container["resources"]["limits"] == {"memory": "12Gi", "nvidia.com/gpu": "1"}


def test_every_combination_is_sound() -> None:
    for values in combinations():
        objects = render_chart(values, "elsewhere")
        assert lint(objects, openshift=values["openshift"]) == [], values
        kinds = [made["kind"] for made in objects]
        workers = values["workers"]
        assert ("ScaledJob" in kinds, "HorizontalPodAutoscaler" in kinds) == (
            workers["scaler"] == "keda",
            workers["scaler"] == "hpa",
        )
        assert kinds.count("CronWorkflow") == values["argo"]["nightly"]["enabled"]
        assert ("ServiceMonitor" in kinds) == values["monitor"]["prometheus"]
        found = workers_of(objects)
        assert bool(found) == (
            workers["device"] == "cuda" and (workers["scaler"] != "none" or "WorkflowTemplate" in kinds)
        )
        for _, pod in found:
            assert pod.get("nodeSelector", {}) == workers.get("nodeSelector", {})
            assert {each["key"] for each in pod["tolerations"]} == {
                "nvidia.com/gpu",
                *(each["key"] for each in workers.get("tolerations", ())),
            }


def test_names_are_unique() -> None:
    for case in CASES.values():
        objects = render_chart(merge_values(VALUES, case))
        names = [(made["kind"], made["metadata"]["name"]) for made in objects]
        assert len(names) == len(set(names))


def test_accounts_nodes_and_sizes_are_where_they_belong() -> None:
    objects = render_chart(
        merge_values(VALUES, CASES["eks"], {"workers": {"most": 3, "shardsPerWorker": 2}}, CASES["argo-keda"])
    )
    noted = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount" and "annotations" in o["metadata"]}
    assert noted == {"shardmill", "shardmill-argo"}
    (scaled,) = [made for made in objects if made["kind"] == "ScaledJob"]
    assert scaled["spec"]["maxReplicaCount"] == 3
    assert scaled["spec"]["triggers"][0]["metadata"]["targetValue"] == "2"
    assert scaled["spec"]["triggers"][0]["metadata"]["url"].startswith("http://shardmill-monitor.team.svc:")
    light = [
        (container, pod)
        for made in objects
        for container, pod in containers_of(made)
        if "nvidia.com/gpu" not in str(container.get("resources"))
    ]
    assert len(light) > 5
    assert all("tolerations" not in pod for _, pod in light)
    assert all(container["resources"]["requests"]["memory"] in ("1Gi", "4Gi") for container, _ in light)


def test_without_gpus_nothing_asks_for_one() -> None:
    objects = render_chart(merge_values(VALUES, CASES["cpu"]))
    assert workers_of(objects) == []
    said = [container["args"] for made in objects for container, _ in containers_of(made)]
    assert not any("cuda" in word for words in said for word in words)
    assert sum("--device=cpu" in words for words in said) > 5


def test_slices_of_gpus_and_room_on_the_disk_are_asked_for() -> None:
    mig = {"workers": {"gpuResource": "nvidia.com/mig-1g.10gb", "disk": "20Gi"}}
    objects = render_chart(merge_values(VALUES, mig))
    (scaled,) = [made for made in objects if made["kind"] == "ScaledJob"]
    pod = scaled["spec"]["jobTargetRef"]["template"]["spec"]
    assert [each["key"] for each in pod["tolerations"]] == ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu"]
    asked = {"cpu": "2", "memory": "12Gi", "ephemeral-storage": "20Gi", "nvidia.com/mig-1g.10gb": "1"}
    assert pod["containers"][0]["resources"]["requests"] == asked


def test_a_registry_of_its_own_is_in_every_pod() -> None:
    objects = render_chart(merge_values(VALUES, CASES["air-gap"]))
    images = {container["image"] for made in objects for container, _ in containers_of(made)}
    assert images == {"mirror.corp.example/mill@sha256:" + "a" * 64, "mirror.corp.example/mill-light:7"}
    assert all("envFrom" not in container for made in objects for container, _ in containers_of(made))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "/folder"),
        ({"folder": "s3://b", "imagee": {}}, "'imagee' not allowed"),
        ({"folder": "s3://b", "workers": {"scaler": "cron"}}, "/workers/scaler"),
        ({"folder": "s3://b", "workers": {"tolerances": []}}, "'tolerances' not allowed"),
        ({"folder": "s3://b", "monitor": {"enabled": False}}, "set monitor.enabled=true, or workers.scaler=none"),
        ({"folder": "s3://b", "argo": {"enabled": True, "nightly": {"enabled": True}}}, "parameters has no source"),
    ],
)
def test_a_value_that_cannot_be_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises((errors.HelmValuesError, errors.HelmRenderError)) as caught:
        render_chart(values)
    assert said in str(caught.value)


def test_helm_finds_nothing_wrong() -> None:
    report = charts.lint(CHART, VALUES, strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


def test_the_objects_are_what_the_code_makes() -> None:
    made = make_chart_files()
    assert {path: (CHART / path).read_text() for path in made} == made, "run: python -m tools.manifests"
    assert {f"objects/{path.name}" for path in (CHART / "objects").iterdir()} == {*made}
