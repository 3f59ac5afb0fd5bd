"""A map with marks, and the removal of duplicates, import neither torch nor transformers, even if they are there."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from tests.support.answers import passages, write_embedder
from tests.support.libraries import needed
from tests.support.refused import run_refused

# Imported here it would report its use; shardmill imports it without.
if importlib.util.find_spec("openvino") is None:
    needed("openvino")

_SCRIPT = """
import sys
import shardmill

model, made = sys.argv[1:]
source = f"{made}/passages.jsonl"
shardmill.embed(source, text="text", id="id", model=model, out=f"{made}/vectors")
shardmill.map(f"{made}/vectors", out=f"{made}/map", marks=["Which windmill?"])
shardmill.dedup(source, text="text", id="id", out=f"{made}/kept")
"""


def test_map_and_dedup(tmp_path: Path) -> None:
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages()))
    run_refused(tmp_path, _SCRIPT, str(write_embedder(tmp_path / "model")), str(tmp_path))
