"""The image of the pods: every verb of every template works with the packages that its extras bring, and no others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from shardmill.plugins import find_verb
from tests.support.cli import command
from tests.support.image import CONTAINERFILE, SITE, extras_of_image, packages_with, site_of_image
from tests.support.libraries import needed

needed("yaml")
from tools.manifests import make_objects  # noqa: E402

ROOT = Path(__file__).parents[2]
STUDY = """
[work]
call = "tests.support.objectives:quadratic"
trials = 2

[space]
x = {low = -5.0, high = 5.0}
n = {low = 1, high = 8}
way = ["a", "b"]
"""


def steps() -> dict[str, list[str]]:
    """The verbs of all templates, each with the arguments of one of its steps."""
    made = [each for name in ("argo", "nightly") for each in make_objects()[name]]
    specs = [each["spec"].get("workflowSpec", each["spec"]) for each in made if "Workflow" in each["kind"]]
    words = [step["container"]["args"] for spec in specs for step in spec["templates"] if "container" in step]
    return {each[0]: each for each in words}


def light_steps() -> set[str]:
    """What pods without a GPU run: steps of templates, and the monitor."""
    made = [each for name in ("argo", "nightly") for each in make_objects()[name]]
    specs = [each["spec"].get("workflowSpec", each["spec"]) for each in made if "Workflow" in each["kind"]]
    found = [step["container"] for spec in specs for step in spec["templates"] if "container" in step]
    return {"monitor"} | {each["args"][0] for each in found if "nvidia.com/gpu" not in each["resources"]["limits"]}


def run_alone(words: list[str], folder: Path, *, light: bool = False) -> subprocess.CompletedProcess[str]:
    place = folder / ("light" if light else "image")
    place.mkdir(exist_ok=True)
    (place / SITE).write_text(site_of_image(light=light))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (place, ROOT / "src", ROOT)))}
    return subprocess.run(command(*words), cwd=folder, env=environment, capture_output=True, text=True)


def test_what_is_not_in_an_image_cannot_be_imported(tmp_path: Path) -> None:
    for light, absent in ((True, "torch"), (False, "kornia")):
        (tmp_path / SITE).write_text(site_of_image(light=light))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        words = [sys.executable, "-c", f"import pyarrow, {absent}"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert f"No module named '{absent}'" in done.stderr


def test_the_image_has_what_the_verbs_of_the_templates_ask_for() -> None:
    there = packages_with(extras_of_image())
    assert len(steps()) > 8
    every = set(metadata.metadata("shardmill").get_all("Provides-Extra") or ())
    for name in steps():
        for extra in {name} & every | {*find_verb(name).extras}:
            assert packages_with({extra}) <= there, f"{name} needs {extra}"


@pytest.mark.parametrize("verb", steps())
def test_a_verb_of_a_template_begins_in_the_image(verb: str, tmp_path: Path) -> None:
    done = run_alone([verb, "--help"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usage: shardmill" in done.stdout


def test_the_light_image_has_what_pods_without_a_gpu_run(tmp_path: Path) -> None:
    there = packages_with(extras_of_image(light=True))
    assert "torch" not in there
    asked = {extra for name in light_steps() - {"kubernetes", "monitor"} for extra in find_verb(name).extras}
    assert asked >= {"tune"}
    assert packages_with(asked) <= there
    for name in sorted(light_steps()):
        done = run_alone([name, "--help"], tmp_path, light=True)
        assert done.returncode == 0, done.stderr
    (tmp_path / "study.toml").write_text(STUDY)
    planned = ["tune", "study.toml", "--out", "study", "--engine", "pool", "--detach", "--device", "cpu"]
    for words in (planned, ["work", "--device", "cpu", "--allow-code", "--", "study"], ["study", "--", "study"]):
        done = run_alone(words, tmp_path, light=True)
        assert done.returncode == 0, done.stderr


def test_an_image_says_what_is_in_it() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "bill.py")], capture_output=True, text=True, check=True)
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    named = {each["name"]: each for each in bill["components"]}
    assert named["pyarrow"]["purl"] == f"pkg:pypi/pyarrow@{metadata.version('pyarrow')}"
    known = {each["bom-ref"] for each in bill["components"]}
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert needs.keys() == known
    assert all({*each} <= known for each in needs.values())
    assert named["pydantic-core"]["bom-ref"] in needs[named["pydantic"]["bom-ref"]]
    assert "tools/bill.py > /opt/shardmill/sbom.json" in CONTAINERFILE.read_text()


def test_the_driver_is_looked_for_where_gke_mounts_it() -> None:
    assert re.search(r"^ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64$", CONTAINERFILE.read_text(), re.M)


def test_a_study_runs_in_the_image(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    done = run_alone(["tune", "study.toml", "--out", "study", "--device", "cpu"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert run_alone(["study", "study"], tmp_path).returncode == 0
