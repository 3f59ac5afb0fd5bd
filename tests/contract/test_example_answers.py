"""examples/answer_questions.py runs to its end, with a tiny model."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.support.answers import write_embedder

EXAMPLE = Path(__file__).parents[2] / "examples" / "answer_questions.py"


def test_the_questions_of_the_example_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_embedder(tmp_path / "model")
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path / "out"), str(model)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("Who built the lighthouse of Cap Roig?  ")
    assert lines[-1].startswith("recall@1 ")
