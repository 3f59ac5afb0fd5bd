"""examples/summarize_news.py as a user runs it, with a tiny model."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.summaries import write_encoder
from tests.support.tiny_models import needed

EXAMPLE = Path(__file__).parents[2] / "examples" / "summarize_news.py"


def test_news_are_summarized_by_item_and_by_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed("rouge_score")
    model = write_encoder(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path / "news"), str(model)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "harbour",
        "harbour",
        "birds",
        "birds",
        "harbour",
        lines[-1].partition(",")[0],
    ]
    # The summary of a group of one is that of its item.
    assert lines[3].removeprefix("birds, 1 items: ") == re.sub(r"^birds, ROUGE-1 0\.\d\d: ", "", lines[2])
    assert lines[4].startswith("harbour, 2 items: ")
    assert lines[-1].startswith("verified: True; means: rouge1 0.")
