"""The benchmark of families with a position bias as one command, on tiny shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny_models import needed

needed("torch"), needed("transformers"), needed("tokenizers")

from benchmarks.families import main  # noqa: E402


def test_both_families_and_the_start_of_a_small_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--tiny", "--device", "cpu", "--texts", "40", "--no-peers", "--out", str(tmp_path)]
    results, starts = main(asked)
    assert [Path(result.model).name for result in results] == ["mpnet", "t5"]
    assert all(result.verified and result.docs_per_s > 0 for result in results)
    assert [start.command for start in starts] == ["embed, first", "embed, again", "verify"]
    assert all(0 < start.first_batch_s < start.whole_s for start in starts if start.first_batch_s is not None)
    report = json.loads((tmp_path / "families.json").read_text())
    assert len(report["embed"]) == 2
    assert len(report["starts"]) == 3
    assert "embed, again" in capsys.readouterr().out
