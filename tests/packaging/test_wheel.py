"""The wheel, built and installed into an environment of its own, and the unit tests on a later Python."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.test_constraints import ROOT, bare_environment
from tests.support.waiting import PATIENCE_S
from tests.support.wheels import build_wheel, make_environment

OLDEST_NEWER = (3, 12)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def test_a_clean_environment_runs_and_verifies(wheel: Path, tmp_path: Path) -> None:
    bin = make_environment(tmp_path / "venv", sys.executable, wheel)
    (tmp_path / "items.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(50)))

    def shardmill(*words: str) -> str:
        command = [bin / "shardmill", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=bare_environment(), capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert shardmill("--version").strip() in wheel.name
    task = ("--task", "shardmill.testing:FakeTask")
    assert "50 rows" in shardmill("run", "items.jsonl", *task, "--text", "text", "--out", "run")
    assert "Verified: 50 rows" in shardmill("verify", "run")
    inside = subprocess.run([sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True).stdout
    assert "shardmill/py.typed" in inside
    assert "shardmill/plan/sizing/catalogue.toml" in inside


def newest_python() -> str | None:
    """The newest interpreter after 3.11 on this machine: on the path, or one of pyenv's."""
    names = {f"python3.{minor}" for minor in range(OLDEST_NEWER[1], 20)}
    places = [found for name in names if (found := shutil.which(name)) is not None]
    places += map(str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.*/bin/python3"))
    versions: dict[tuple[int, int], str] = {}
    for place in places:
        said = subprocess.run([place, "--version"], capture_output=True, text=True)
        match = re.fullmatch(r"Python 3\.(\d+)\.(\d+)\s*", said.stdout)
        if match and said.returncode == 0 and int(match[1]) >= OLDEST_NEWER[1]:
            versions[int(match[1]), int(match[2])] = place
    return versions[max(versions)] if versions else None


@pytest.mark.timeout(900)
def test_the_unit_tests_pass_on_a_later_python(wheel: Path, tmp_path: Path) -> None:
    """Without torch, which has no small build for every Python: what needs it is skipped there."""
    python = newest_python()
    if python is None:
        pytest.skip("no Python 3.12 or later is here")
    bin = make_environment(
        tmp_path / "venv", python, wheel, "pytest", "pytest-timeout", "hypothesis", "psutil", "pytest-xdist"
    )
    command = [str(bin / "python"), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    # The rest is about the checkout, or starts processes, which is the same on every Python.
    command += ["-m", "not model", "tests/unit", "--ignore=tests/unit/cli"]
    command += ["--ignore=tests/unit/test_docs.py", "--ignore=tests/unit/test_architecture.py"]
    done = subprocess.run(command, cwd=ROOT, env={**bare_environment(), "CI": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
