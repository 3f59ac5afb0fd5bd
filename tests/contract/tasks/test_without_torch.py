"""What needs an encoder, a re-ranker or a reader imports neither torch nor transformers, even if they are installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from tests.support.answers import passages, questions, write_models
from tests.support.libraries import needed
from tests.support.refused import run_refused

# Imported here it would report its use; shardmill imports it without.
if importlib.util.find_spec("openvino") is None:
    needed("openvino")

_SCRIPT = """
import sys
import shardmill

root, made = sys.argv[1:]
model, pairs = f"{root}/embedder", {"reader": f"{root}/reader", "rerank": f"{root}/reranker"}
source, asked = f"{made}/passages.jsonl", f"{made}/questions.jsonl"
run = shardmill.embed(source, text="text", id="id", model=model, out=f"{made}/vectors")
assert run.search("the windmill of Corvale")
assert shardmill.ask(f"{made}/vectors", "When was it built?", **pairs).passages
answers = shardmill.answer(asked, text="question", id="id", over=f"{made}/vectors", out=f"{made}/answers", **pairs)
assert answers.table().num_rows == 24
shardmill.summarize(source, text="text", id="id", method="extractive", model=model, out=f"{made}/summaries")
"""


def test_embed_search_ask_answer_and_summarize(tmp_path: Path) -> None:
    for name, rows in (("passages", passages()), ("questions", questions())):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_refused(tmp_path, _SCRIPT, str(write_models(tmp_path / "models")), str(tmp_path))
