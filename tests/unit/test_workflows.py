"""What runs on the forge: which code of others, with which rights, and that it calls what is here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.libraries import needed

yaml = needed("yaml")

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_are_workflows() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "test"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_code_of_others_is_named_by_its_digest(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    assert [name for name, _ in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", name)] == []
    assert [name for name, said in used if not re.fullmatch(r" # v[\d.]+", said)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_has_only_the_rights_that_it_names(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert job["permissions"], name
        assert job["timeout-minutes"], name
    checkouts = [step for step in steps(workflow) if "actions/checkout@" in step.get("uses", "")]
    assert [step for step in checkouts if step["with"]["persist-credentials"]] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_it_calls_what_is_here(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [step.get("run", "") for step in steps(read(path))]
    called = {name for line in lines for name in re.findall(r"\bmake ([a-z-]+)", line)}
    assert called <= targets
    named = {
        name for line in lines for name in re.findall(r"\b((?:tools|deploy|tests)/[\w/.]+|constraints\.txt)", line)
    }
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_only_publishing_may_write_and_no_password_is_used() -> None:
    jobs = read(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    assert [path.name for path in WORKFLOWS if "secrets." in path.read_text()] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_a_form_asks_for_what_is_needed(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    assert [field["id"] for field in form["body"] if field["validations"]["required"]]
