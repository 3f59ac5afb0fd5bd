"""A run with static embeddings: killed, finished on another engine, proved, searched; with tokenizers alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.refused import run_refused
from tests.support.static_models import CORPUS, word_piece, write_model2vec

EXAMPLE = Path(__file__).parents[3] / "examples" / "embed_static.py"
_SCRIPT = """
import os, signal, sys
import numpy as np
import shardmill
from shardmill.core.devices import Device
from shardmill.plan.spec import make_spec
from shardmill.run import Run, prepare, resume
from shardmill.testing import InProcessEngine, crash_at

model, made = sys.argv[1:]
out = f"{made}/run"
work = {"source": f"{made}/items.jsonl", "text": "text", "id": "id", "task": "embed", "params": {"model": model}}
run = prepare(make_spec(work, {"device": "cpu", "shard_bytes": 600, "lease_s": 5.0, "max_errors": "1"}), out)
child = os.fork()
if not child:
    InProcessEngine(on_step=crash_at("committed", after=1)).start(out)
    os._exit(1)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)

run = resume(out, {"engine": "local", "workers": 2})
report = run.verify(sample="all")
assert report.verified, report
said = next(check.seen for check in report.checks if check.name == "sample")
assert "in float64 by NumPy on the CPU" in said, said
assert {commit.kernel for commit in run.ledger.commits.read().values()} == {"numpy float32, token vectors"}
table = run.table()
assert table.column("id").to_pylist() == list(range(49))
assert table.column("embedding").null_count == 1
hit = run.search(open(f"{made}/asked.txt").read(), k=1)[0]
assert hit.row == 7 and hit.score > 0.999, hit

windows = shardmill.embed(
    f"{made}/items.jsonl", text="text", model=model, window_tokens=8, overlap=2, max_errors=1, out=f"{made}/windows"
)
assert windows.verify(sample="all").verified
assert windows.table().num_rows > 2 * 49
"""


def test_killed_finished_elsewhere_and_proved_without_torch_or_openvino(tmp_path: Path) -> None:
    rows = [{"id": n, "text": f"{text} {n}"} for n, text in enumerate(CORPUS * 4)] + [{"id": 48, "text": "🙂🙂"}]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "asked.txt").write_text(rows[7]["text"])
    model = write_model2vec(tmp_path / "model", word_piece())
    run_refused(tmp_path, _SCRIPT, str(model), str(tmp_path), also=("openvino", "safetensors"))


def test_the_example(tmp_path: Path) -> None:
    rows = [{"reviewerID": f"r{n}", "asin": "a", "reviewText": text} for n, text in enumerate(CORPUS[:4])]
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = write_model2vec(tmp_path / "model", word_piece())
    command = [sys.executable, EXAMPLE, "reviews.jsonl", model, "run"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, *hits = said.stdout.splitlines()
    assert first == "4 rows, verified"
    assert len(hits) == 3
