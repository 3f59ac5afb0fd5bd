"""examples/tune_regression.py as a user runs it, and the study of docs/tune.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardmill.plan.spec import make_spec
from shardmill.run import start
from shardmill.testing import InProcessEngine
from shardmill.verbs.tune.study_file import read_study_file
from tests.support.libraries import needed

needed("optuna")
EXAMPLE = Path(__file__).parents[2] / "examples" / "tune_regression.py"


def test_a_regression_is_tuned(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("40 trials: ")
    # The starting point is a straight line, which cannot follow the sine.
    found = re.search(r"best: trial (\d+), loss (0\.\d+)", done.stdout)
    assert found is not None
    assert float(found[2]) < 0.1
    assert "circle" in (tmp_path / "run" / "report.html").read_text()


def test_the_study_of_the_guide_has_the_best_trial_that_the_guide_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sampler draws the same on every processor, and what is shown is rounded."""
    page = (EXAMPLE.parents[1] / "docs" / "tune.md").read_text()
    blocks = re.findall(r"```(\w+)\n# (\S+)\n(.*?)```", page, re.DOTALL)
    for _, name, text in blocks:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    work, execution = read_study_file("study.toml", {})
    run = start(make_spec(work, execution), tmp_path / "run", engine=InProcessEngine())
    sys.modules.pop("objectives", None)
    best = run.study().best[0]
    tried = "  ".join(f"{name} {x if isinstance(x, str) else f'{x:.6g}'}" for name, x in best.parameters.items())
    assert f"best     trial {best.number}  loss {best.values[0]:.6g}  (0 s)\n         {tried}\n" in page
