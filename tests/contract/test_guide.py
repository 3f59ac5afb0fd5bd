"""docs/kubernetes.md: each command that it tells is one that exists, about what is shipped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shardmill.cli import app
from shardmill.engines.kubernetes.monitor import MONITOR, PORT, TOKEN_KEY
from shardmill.engines.kubernetes.options import read_pod_options
from shardmill.plan.spec import make_execution
from tests.support.guide import blocks, commands, completed, every_command, given
from tests.support.libraries import needed

yaml = needed("yaml")
needed("lightkube")
from shardmill.engines.kubernetes.render import FRONT_OPTIONS, render_refresh  # noqa: E402
from tests.support.chart import render_chart  # noqa: E402
from tools.manifests import KEYS, NAMESPACE, OVERLAYS, make_objects  # noqa: E402

ROOT = Path(__file__).parents[2]
EVERY = every_command()


def of(program: str, *words: str) -> list[list[str]]:
    """The commands of a program that have these words in this order, flags left out."""
    found = [each for each in EVERY if each[0] == program]
    return [each for each in found if [word for word in each if word in words] == [*words]]


def test_the_guide_has_commands_of_each_kind() -> None:
    counts = {name: len(of(name)) for name in ("shardmill", "kubectl", "helm", "podman", "argo")}
    assert counts["shardmill"] > 20
    assert counts["kubectl"] > 10
    assert all(counts.values()), counts


@pytest.mark.parametrize("words", of("shardmill"), ids=" ".join)
def test_a_command_of_ours_is_understood(words: list[str]) -> None:
    """Its verb and its options exist, with values that they may have."""
    words = completed(words)
    command: Any = app
    arguments, context = words[1:], app.make_context("shardmill", words[1:])
    # Where the guide only names a command, nothing is asked for.
    named = len(words) <= 3
    while hasattr(command, "resolve_command") and arguments:
        name, command, arguments = command.resolve_command(context, arguments)
        context = command.make_context(name, [*arguments], parent=context, resilient_parsing=named)


def _settings(words: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (each.partition("=") for each in given(words, "--set"))}


@pytest.mark.parametrize("words", [each for each in of("shardmill") if given(each, "--set")], ids=" ".join)
def test_settings_in_the_guide_exist(words: list[str]) -> None:
    (engine, *_), settings = [*given(words, "--engine"), "kubernetes"], _settings(words)
    if engine == "argo":
        assert settings.keys() <= {"namespace", "context", "template", "wait_s"}
        return
    settings["service_account"] = settings.get("service_account", "").partition(",")[0]
    options = {"image": "example.org/a:1", **settings, "gpus": settings.get("gpus", "1").replace("…", "1")}
    read_pod_options(make_execution({"engine": "kubernetes", "engine_options": options}), FRONT_OPTIONS)


@pytest.mark.parametrize("words", of("helm", "install"), ids=" ".join)
def test_the_chart_is_installed_as_the_guide_says(words: list[str]) -> None:
    needed("helm_python.chart")
    assert (ROOT / words[3] / "Chart.yaml").exists()
    values: dict[str, Any] = {}
    for path, _, value in (each.partition("=") for each in given(words, "--set")):
        *above, last = path.split(".")
        place = values
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    (space,) = given(words, "--namespace")
    objects = render_chart(values, space)
    assert f"{values['image']['registry']}/shardmill:{values['image']['tag']}" in str(objects)
    # What follows it in the guide makes the Secret that these objects name.
    assert any(f"-n {space} create secret generic {MONITOR}" in " ".join(each) for each in of("kubectl"))


def test_kubectl_applies_what_is_shipped() -> None:
    applied = [place for each in of("kubectl", "apply") for place in given(each, "-k") if "…" not in place]
    assert {*applied} >= {f"deploy/kubernetes/overlays/{name}" for name in ("eks", "keda", "argo")}
    assert {Path(place).name for place in applied} <= {*OVERLAYS}


def test_secrets_and_namespaces_are_those_that_the_manifests_name() -> None:
    made = of("kubectl", "create", "secret")
    assert len(made) > 2
    for words in made:
        name = words[words.index("generic") + 1]
        (literals, files) = given(words, "--from-literal"), given(words, "--from-env-file")
        assert (name == MONITOR and literals[0].startswith(f"{TOKEN_KEY}=")) or (name == KEYS and files), words
    for words in of("kubectl", "create", "namespace"):
        assert words[-1] == NAMESPACE


def test_the_monitor_is_where_the_guide_forwards_to() -> None:
    (words,) = of("kubectl", "port-forward")
    assert words[-2:] == [f"deployment/{MONITOR}", str(PORT)]


def test_the_cron_job_has_the_name_that_the_guide_says() -> None:
    (block,) = [each for each in blocks() if "--from=cronjob/" in each]
    rendered, _, turned = commands(block)
    (out,) = given(rendered, "--out")
    options = {"image": given(rendered, "--image")[0], **_settings(rendered)}
    execution = make_execution({"engine": "kubernetes", "engine_options": options})
    (made,) = render_refresh("refresh", execution, out)
    assert given(turned, "--from") == [f"cronjob/{made['metadata']['name']}"]
    assert turned[turned.index("-n") + 1] == made["metadata"]["namespace"]


def test_argo_is_given_what_the_template_asks_for() -> None:
    templates = {
        each["metadata"]["name"]: each for each in make_objects()["argo"] if each["kind"] == "WorkflowTemplate"
    }
    (words,) = of("argo", "submit")
    template = templates[given(words, "--from")[0].removeprefix("workflowtemplate/")]
    known = {each["name"]: "value" in each for each in template["spec"]["arguments"]["parameters"]}
    named = {each.partition("=")[0] for each in given(words, "-p")}
    assert {name for name, optional in known.items() if not optional} <= named <= known.keys()


def test_every_template_is_in_the_table() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    made = [*make_objects()["argo"], *make_objects()["nightly"]]
    names = [each["metadata"]["name"] for each in made if each["kind"] in ("WorkflowTemplate", "CronWorkflow")]
    assert [name for name in names if f"| `{name}` |" not in page] == []


def test_the_image_is_built_with_what_its_recipe_takes() -> None:
    recipe = (ROOT / "deploy" / "Containerfile").read_text()
    declared = {*re.findall(r"^ARG (\w+)=", recipe, re.MULTILINE)}
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    named = re.findall(r"--build-arg (\w+)=(\S+?)`", " ".join(page.split()))
    assert {name for name, _ in named} == declared
    assert dict(named)["EXTRAS"] in recipe
    (built,) = of("podman", "build")
    assert given(built, "-f") == ["deploy/Containerfile"]


def test_values_in_the_guide_are_the_charts() -> None:
    """The table names values as `image.registry`, `.tag`."""
    values = yaml.safe_load((ROOT / "deploy" / "chart" / "values.yaml").read_text())
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (table,) = re.findall(r"^\| value \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    for row in table.strip().splitlines()[2:]:
        names = re.findall(r"`([\w.]+)`", row.split("|")[1])
        above = names[0].rpartition(".")[0]
        for name in names:
            found: Any = values
            for part in (f"{above}{name}" if name.startswith(".") else name).split("."):
                assert part in found, name
                found = found[part]
