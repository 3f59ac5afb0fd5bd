"""The benchmark of generation as one command, on tiny shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny_models import needed

needed("torch"), needed("transformers"), needed("tokenizers")

from benchmarks.generate import main  # noqa: E402


def test_both_kinds_of_models_with_the_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = ["tiny-qwen3/mixed", "tiny-bart/equal"]
    found = main([*cases, "--device", "cpu", "--count", "13", "--peer-s", "0.001", "--out", str(tmp_path)])
    assert [one.case for one in found] == cases
    assert {(peer.batch, peer.documents) for one in found for peer in one.peers} <= {(8, 8), (8, 5), (12, 12), (12, 1)}
    assert all(one.documents == 13 and one.docs_per_s > 0 and one.reading_s > 0 for one in found)
    report = json.loads((tmp_path / "generate.json").read_text())
    assert [one["tokens_out"] for one in report["cases"]] == [found[0].tokens_out, 13 * 6]
    assert (tmp_path / "generate.md").read_text().strip() in capsys.readouterr().out
