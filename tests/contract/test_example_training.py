"""examples/train_pairs.py as a user runs it, with a tiny model."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.libraries import needed
from tests.support.training import a_model

needed("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_pairs.py"


def test_a_model_is_trained_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = a_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path / "train"), str(model)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    first, *hits, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"21 items, 12 steps: mrr@10 \d\.\d\d -> \d\.\d\d", first)
    assert len(hits) == 2
    assert last == "verified: True"
