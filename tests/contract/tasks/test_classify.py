"""Runs of every kind of classifier: killed, finished on another engine, proved, without torch; the example."""

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
from shardmill.verbs.classify.rows import LabelRows  # noqa: E402
from tests.support.classifiers import write_classifier, write_entailer, write_tagger  # noqa: E402
from tests.support.refused import run_refused  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "examples" / "filter_pages.py"
_SCRIPT = """
import os, signal, sys
from shardmill.plan.spec import make_spec
from shardmill.run import prepare, resume, start
from shardmill.testing import InProcessEngine, crash_at

made = sys.argv[1]
out = f"{made}/run"
params = {"model": f"{made}/classes", "top_k": 2}
work = {"source": f"{made}/items.jsonl", "text": "text", "id": "id", "task": "classify", "params": params}
run = prepare(make_spec(work, {"device": "cpu", "shard_bytes": 600, "lease_s": 5.0}), out)
child = os.fork()
if not child:
    InProcessEngine(on_step=crash_at("committed", after=1)).start(out)
    os._exit(1)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)

resume(out, {"engine": "local", "workers": 1})
for name, columns, params in (
    ("tokens", ["spans"], {}),
    ("entails", ["label", "score"], {"labels": "money,weather"}),
    ("several", ["label", "score", "labels"], {"threshold": 0.4}),
):
    more = {**work, "limit": 8, "params": {"model": f"{made}/{name}", **params}}
    made_run = start(make_spec(more, {"device": "cpu"}), f"{made}/of-{name}", engine=InProcessEngine())
    assert made_run.table().column_names == ["row", "id", *columns], made_run.table().column_names
"""


def _write_items(folder: Path) -> None:
    texts = ["The battery died after an hour.", "Anna went to Paris in May", "rain, rain and more rain", "Yes."]
    rows = [{"id": n, "text": f"{texts[n % 4]} {n}"} for n in range(40)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_killed_finished_elsewhere_and_proved_without_torch(tmp_path: Path) -> None:
    _write_items(tmp_path)
    write_classifier(tmp_path / "classes")
    write_tagger(tmp_path / "tokens", "roberta")
    write_entailer(tmp_path / "entails", "distilbert")
    write_classifier(tmp_path / "several", problem_type="multi_label_classification")
    run_refused(tmp_path, _SCRIPT, str(tmp_path))
    run = Run(tmp_path / "run")
    for each in (run, *(Run(tmp_path / f"of-{name}") for name in ("tokens", "entails", "several"))):
        report = each.verify(sample="all")
        assert report.verified, report
        said = next(check.seen for check in report.checks if check.name == "sample")
        assert "in float32 by torch" in said
        assert "largest difference" in said
    table = run.table()
    assert table.column("id").to_pylist() == list(range(40))
    assert set(table.column("label").to_pylist()) <= {"bad", "good", "odd"}
    assert all(len(each) == 2 for each in table.column("labels").to_pylist())
    run.report(tmp_path / "report.json")
    classes = json.loads((tmp_path / "report.json").read_text())["classes"]
    assert (classes["items"], classes["without"], sum(classes["scores"])) == (40, 0, 40)
    assert "What was found" in Path(run.report(tmp_path / "report.md")).read_text()


def test_rows_of_other_items_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_items(tmp_path)
    params = {"model": str(write_classifier(tmp_path / "classes"))}
    work = {"source": str(tmp_path / "items.jsonl"), "text": "text", "id": "id", "task": "classify", "params": params}
    make = LabelRows.make
    with monkeypatch.context() as patch:
        patch.setattr(LabelRows, "make", lambda self, rows, bad=(): make(self, rows[::-1].copy(), bad))
        spec = make_spec(work, {"device": "cpu", "precision": "float32"})
        run = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert not next(check for check in run.verify(sample="all").checks if check.name == "sample").ok


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pages = [{"url": f"https://a.example/{n}", "text": f"{'wind and rain ' * (n % 5)}{n}"} for n in range(20)]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    write_classifier(tmp_path / "languages", labels=("en", "de"))
    write_classifier(tmp_path / "quality", labels=("quality",), problem_type="regression")
    monkeypatch.chdir(tmp_path)
    given = ["pages.jsonl", "./languages", "./quality", "en", "-100", "kept.jsonl"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *given])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out.splitlines()[-1]
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert said.startswith("20 pages, ")
    assert said.endswith(f"{len(kept)} in en, {len(kept)} kept in kept.jsonl")
    assert all(set(row) == {"url", "text", "score"} for row in kept)
