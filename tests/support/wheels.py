"""Wheels, and environments of their own that they are installed into."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.test_constraints import ROOT, bare_environment
from tests.support.cli import Said
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


class Environment:
    """An environment of its own, in which commands see nothing of this checkout."""

    def __init__(self, bin: Path, folder: Path) -> None:
        self.bin, self.folder = bin, folder
        self.python, self.log = str(bin / "python"), folder / "command.log"
        self.variables = {k: v for k, v in bare_environment().items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def with_variables(self, variables: dict[str, str]) -> Environment:
        found = Environment(self.bin, self.folder)
        found.variables |= variables
        return found

    def command(self, *words: object) -> list[str]:
        return [str(self.bin / "shardmill"), *map(str, words)]

    def __call__(self, *words: object) -> Said:
        how: dict[str, Any] = {"cwd": self.folder, "env": self.variables, "timeout": PATIENCE_S}
        done = subprocess.run(self.command(*words), capture_output=True, text=True, **how)
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        """The command in the background, with its words in a log."""
        with open(self.log, "wb") as log:
            return subprocess.Popen(self.command(*words), cwd=self.folder, env=self.variables, stdout=log, stderr=log)
