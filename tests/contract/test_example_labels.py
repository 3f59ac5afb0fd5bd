"""examples/label_reviews.py as a user runs it, with a tiny model."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.generative_models import write_generative
from tests.support.tiny_models import needed

EXAMPLE = Path(__file__).parents[2] / "examples" / "label_reviews.py"


def test_every_review_gets_a_label_that_fits_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed("llguidance")
    model = write_generative(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENDPOINT", raising=False)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(model), str(tmp_path / "labelled")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    *labels, last = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in labels] == ["r1", "r2", "r3", "r4"]
    assert all({"about", "content"} == json.loads(line.partition(" ")[2]).keys() for line in labels)
    assert last == "verified: True, 4 rows, 0 failed"


def test_without_a_model_it_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    with pytest.raises(SystemExit, match=r"label_reviews\.py MODEL"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
