"""examples/apply_function.py as a user runs it: its function is sent to workers as the file it is in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "apply_function.py"
TEXTS = ["It works well. I like it a lot. Yes.", "No.", "Good phone for the money"]


def test_reviews_become_sentences(tmp_path: Path) -> None:
    rows = [{"reviewerID": f"r{i}", "asin": "a", "reviewText": text} for i, text in enumerate(TEXTS)]
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = subprocess.run(
        [sys.executable, EXAMPLE, "reviews.jsonl", "run"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout == "3 reviews gave 3 sentences; 1 gave none.\nverified\n"
