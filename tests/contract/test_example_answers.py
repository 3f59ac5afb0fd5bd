"""examples/answer_questions.py runs to its end, with a tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import shardmill
from tests.support.answers import write_embedder

EXAMPLE = Path(__file__).parents[2] / "examples" / "answer_questions.py"


def test_the_questions_of_the_example_are_answered(tmp_path: Path) -> None:
    model = write_embedder(tmp_path / "model")
    paths = os.pathsep.join([str(Path(shardmill.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "out"), str(model)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("Who built the lighthouse of Cap Roig?  ")
    assert lines[-1].startswith("recall@1 ")
