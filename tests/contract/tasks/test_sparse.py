"""Runs of sparse vectors: killed, finished on another engine, proved, without torch; the example."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.libraries import needed

for _library in ("torch", "openvino", "tokenizers"):
    needed(_library)

from shardmill.plan.spec import make_spec  # noqa: E402
from shardmill.run import Run, start  # noqa: E402
from shardmill.testing import InProcessEngine  # noqa: E402
from shardmill.verbs.embed_sparse import task as sparse_task  # noqa: E402
from tests.support.refused import run_refused  # noqa: E402
from tests.support.sparse_models import write_splade  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "examples" / "sparse_terms.py"
_SCRIPT = """
import os, signal, sys
from shardmill.plan.spec import make_spec
from shardmill.run import prepare, resume
from shardmill.testing import InProcessEngine, crash_at

made = sys.argv[1]
out = f"{made}/run"
params = {"model": f"{made}/splade", "max_active_dims": 12}
work = {"source": f"{made}/items.jsonl", "text": "text", "id": "id", "task": "embed-sparse", "params": params}
run = prepare(make_spec(work, {"device": "cpu", "shard_bytes": 600, "lease_s": 5.0}), out)
child = os.fork()
if not child:
    InProcessEngine(on_step=crash_at("committed", after=1)).start(out)
    os._exit(1)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)

resume(out, {"engine": "local", "workers": 1})
"""


def _write_items(folder: Path) -> None:
    texts = ["The battery died after an hour.", "Anna went to Paris in May", "rain, rain and more rain", "Yes."]
    rows = [{"id": n, "text": f"{texts[n % 4]} {n}"} for n in range(40)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_killed_finished_elsewhere_and_proved_without_torch(tmp_path: Path) -> None:
    _write_items(tmp_path)
    write_splade(tmp_path / "splade")
    run_refused(tmp_path, _SCRIPT, str(tmp_path))
    run = Run(tmp_path / "run")
    report = run.verify(sample="all")
    assert report.verified, report
    said = next(check.seen for check in report.checks if check.name == "sample")
    assert "in float32 by torch" in said
    assert "largest difference" in said
    table = run.table()
    assert table.column_names == ["row", "id", "sparse"]
    assert table.column("id").to_pylist() == list(range(40))
    assert {len(each) for each in table.column("sparse").to_pylist()} == {12}
    run.report(tmp_path / "report.json")
    sparsity = json.loads((tmp_path / "report.json").read_text())["sparsity"]
    assert (sparsity["items"], sparsity["without"], sparsity["most"], sparsity["mean"]) == (40, 0, 12, 12.0)
    assert "Sparse vectors" in Path(run.report(tmp_path / "report.md")).read_text()


def test_rows_of_other_items_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_items(tmp_path)
    params = {"model": str(write_splade(tmp_path / "splade"))}
    work = {"source": str(tmp_path / "items.jsonl"), "text": "text", "task": "embed-sparse", "params": params}
    make = sparse_task.make_column
    with monkeypatch.context() as patch:
        patch.setattr(
            sparse_task, "make_column", lambda rows, null: make(rows, null).take(list(range(len(rows)))[::-1])
        )
        run = start(make_spec(work, {"device": "cpu"}), tmp_path / "run", engine=InProcessEngine())
    assert not next(check for check in run.verify(sample="all").checks if check.name == "sample").ok


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _write_items(tmp_path)
    write_splade(tmp_path / "splade")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "items.jsonl", "text", "./splade"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 5
    assert all(": " in line for line in said)
