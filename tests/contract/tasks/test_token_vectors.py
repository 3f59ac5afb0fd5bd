"""Runs of token vectors: killed, finished on another engine, proved, without torch; searched; the example."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.libraries import needed

for _library in ("torch", "openvino", "tokenizers"):
    needed(_library)

from shardmill.plan.spec import make_spec  # noqa: E402
from shardmill.run import Run, start  # noqa: E402
from shardmill.testing import InProcessEngine  # noqa: E402
from shardmill.verbs.embed_tokens import task as tokens_task  # noqa: E402
from tests.support.colbert_models import DIMS, write_pylate  # noqa: E402
from tests.support.refused import run_refused  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "examples" / "token_matches.py"
TEXTS = ["The battery died after an hour.", "Anna went to Paris in May", "rain, rain and more rain", "Yes.", ""]
_SCRIPT = """
import os, signal, sys
from shardmill.plan.spec import make_spec
from shardmill.run import prepare, resume
from shardmill.testing import InProcessEngine, crash_at

made = sys.argv[1]
out = f"{made}/run"
params = {"model": f"{made}/colbert"}
work = {"source": f"{made}/items.jsonl", "text": "text", "id": "id", "task": "embed-tokens", "params": params}
run = prepare(make_spec(work, {"device": "cpu", "shard_bytes": 600, "lease_s": 5.0}), out)
child = os.fork()
if not child:
    InProcessEngine(on_step=crash_at("committed", after=1)).start(out)
    os._exit(1)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)

resume(out, {"engine": "local", "workers": 1})
found = run.search("When did the battery die?", k=3)
assert len(found) == 3 and found[0].score >= found[1].score >= found[2].score
"""


def _write_items(folder: Path) -> None:
    rows = [{"id": n, "text": f"{TEXTS[n % 4]} {n}"} for n in range(40)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_killed_finished_elsewhere_and_proved_without_torch(tmp_path: Path) -> None:
    _write_items(tmp_path)
    write_pylate(tmp_path / "colbert")
    run_refused(tmp_path, _SCRIPT, str(tmp_path))
    run = Run(tmp_path / "run")
    report = run.verify(sample="all")
    assert report.verified, report
    said = next(check.seen for check in report.checks if check.name == "sample")
    assert "in float32 by torch" in said
    assert "largest difference" in said
    table = run.table()
    assert table.column_names == ["row", "id", "tokens", "vectors"]
    assert table.column("id").to_pylist() == list(range(40))
    assert [*map(len, table.column("vectors").to_pylist())] == table.column("tokens").to_pylist()
    run.report(tmp_path / "report.json")
    told = json.loads((tmp_path / "report.json").read_text())["token_vectors"]
    assert (told["items"], told["vector_bytes"]) == (40, 2 * DIMS)
    assert told["vectors"] == sum(table.column("tokens").to_pylist())
    assert "Token vectors" in Path(run.report(tmp_path / "report.md")).read_text()


def test_rows_of_other_items_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_items(tmp_path)
    params = {"model": str(write_pylate(tmp_path / "colbert"))}
    work = {"source": str(tmp_path / "items.jsonl"), "text": "text", "task": "embed-tokens", "params": params}
    make = tokens_task.make_rows
    with monkeypatch.context() as patch:
        patch.setattr(
            tokens_task, "make_rows", lambda rows, *how: make(rows, *how).take([*range(len(rows.counts))][::-1])
        )
        run = start(make_spec(work, {"device": "cpu"}), tmp_path / "run", engine=InProcessEngine())
    assert not next(check for check in run.verify(sample="all").checks if check.name == "sample").ok


def test_a_search_is_exact(tmp_path: Path) -> None:
    """As sentence-transformers scores it, with a filter and with words too."""
    maxsim = needed("sentence_transformers").MultiVectorEncoder
    _write_items(tmp_path)
    folder = write_pylate(tmp_path / "colbert")
    params = {"model": str(folder), "dtype": "float32"}
    work = {"source": str(tmp_path / "items.jsonl"), "text": "text", "keep": ["text"], "id": "id"}
    limits = {"device": "cpu", "precision": "float32", "shard_bytes": 600}
    spec = make_spec({**work, "task": "embed-tokens", "params": params}, limits)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    asked = ["When did the battery die?", "rain in Paris"]
    model = maxsim(str(folder), device="cpu")
    texts = [json.loads(line)["text"] for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    due = model.similarity(model.encode_query(asked), model.encode_document(texts)).numpy()
    for own, hits in zip(due, run.search_many(asked, 5), strict=True):
        assert [hit.score for hit in hits] == pytest.approx(np.sort(own)[::-1][:5].tolist(), abs=1e-3)
        assert [own[hit.row] for hit in hits] == pytest.approx([hit.score for hit in hits], abs=1e-3)
    few = run.search(asked[0], 3, where="id >= 38")
    assert {hit.row for hit in few} == {38, 39}
    assert [hit.score for hit in few] == pytest.approx(np.sort(due[0][38:])[::-1].tolist(), abs=1e-3)
    assert len(run.search(asked[0], 4, hybrid=True)) == 4
    fake = {**work, "task": "shardmill.testing:FakeTask"}
    dense = start(make_spec(fake, {"device": "cpu", "shard_bytes": 600}), tmp_path / "dense", engine=InProcessEngine())
    anew = dense.search_many(asked, 5, rerank=tmp_path / "run")
    assert [[(hit.row, hit.score) for hit in hits] for hits in anew] == [
        [(hit.row, pytest.approx(hit.score)) for hit in hits] for hits in run.search_many(asked, 5)
    ]
    nearest = dense.search(asked[0], 2, where="id >= 30", rerank=tmp_path / "run")
    assert [hit.row for hit in nearest] == [hit.row for hit in run.search(asked[0], 2, where="id >= 30")]
    run.close()


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _write_items(tmp_path)
    write_pylate(tmp_path / "colbert")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "items.jsonl", "text", "./colbert", "When did the battery die?"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == 5
