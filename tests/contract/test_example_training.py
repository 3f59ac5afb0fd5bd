"""examples/train_pairs.py and examples/train_adapter.py as a user runs them, with a tiny model."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.libraries import needed
from tests.support.training import a_model

needed("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["train_pairs.py", "train_adapter.py"])
def test_a_model_is_trained_and_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = a_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "train"), str(model)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    first, *said, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"21 items, 12 steps: mrr@10 \d\.\d\d -> \d\.\d\d", first)
    assert len([line for line in said if re.match(r"-?\d\.\d\d  About", line)]) == 2
    assert last == "verified: True"
