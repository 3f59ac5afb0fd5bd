"""A report of sparse or token vectors counts rows that have some; failed rows were counted as texts without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.libraries import needed

for _library in ("torch", "tokenizers"):
    needed(_library)

from shardmill.plan.spec import make_spec  # noqa: E402
from shardmill.run import start  # noqa: E402
from shardmill.testing import InProcessEngine  # noqa: E402
from tests.support.colbert_models import write_pylate  # noqa: E402
from tests.support.sparse_models import write_splade  # noqa: E402


@pytest.mark.parametrize(
    ("task", "write", "named"),
    [("embed-sparse", write_splade, "sparsity"), ("embed-tokens", write_pylate, "token_vectors")],
)
def test_failed_rows_are_left_out(task: str, write: Callable[[Path], Path], named: str, tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("rain", None, "rain", " ")))
    work = {"source": str(items), "text": "text", "task": task, "params": {"model": str(write(tmp_path / "model"))}}
    run = start(make_spec(work, {"device": "cpu", "max_errors": "2"}), tmp_path / "run", engine=InProcessEngine())
    run.report(tmp_path / "report.json")
    told = json.loads((tmp_path / "report.json").read_text())[named]
    assert (told["items"], told.get("without", 0)) == (2, 0)
    assert told["mean"] == told["most"] > 0
