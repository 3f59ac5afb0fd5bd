"""The index of words beside libraries that other people have installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.libraries import needed

needed("bm25s")

SEARCH = """
import sys
from pathlib import Path
from shardmill.models.retrieval.words import WordIndex, write_words

write_words(["a red phone", "a green phone"], Path("words"))
print(WordIndex(Path("words")).search(["green"], 1)[0][0].tolist(), "jax" in sys.modules)
import jax
"""


def test_jax_is_not_imported(tmp_path: Path) -> None:
    """At its import it takes most of a GPU's memory. Who wants it afterwards has it."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('jax')\n")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(scores, k):\n    raise AssertionError\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    said = subprocess.run(
        [sys.executable, "-c", SEARCH], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout == "[1] False\njax\n"
