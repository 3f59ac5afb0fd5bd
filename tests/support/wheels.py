"""Wheels, and environments of their own that they are installed into."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.packaging.test_constraints import ROOT, bare_environment
from tests.support.services import unavailable
from tests.support.waiting import PATIENCE_S


def uv(*words: str | Path, cwd: Path = ROOT) -> None:
    find_uv_bin = pytest.importorskip("uv").find_uv_bin
    done = subprocess.run(
        [find_uv_bin(), *map(str, words)],
        cwd=cwd,
        env=bare_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if done.returncode != 0:
        unavailable(f"uv {words[0]}: {done.stderr.strip()[-400:]}")


def build_wheel(project: Path, folder: Path) -> Path:
    """Build the wheel of a project into an empty folder."""
    uv("build", "--quiet", "--no-config", "--wheel", "--out-dir", folder, project)
    (built,) = folder.glob("*.whl")
    return built


def make_environment(folder: Path, python: str, *packages: str | Path) -> Path:
    uv("venv", "--quiet", "--no-config", "--python", python, folder)
    uv("pip", "install", "--quiet", "--no-config", "--python", folder / "bin" / "python", *packages)
    return folder / "bin"
