"""`shardmill generate --endpoint` in real worker processes, over a server that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.run import Run
from tests.support.cli import command
from tests.support.llm_server import MODEL, answer_to, llm_server

pytestmark = pytest.mark.services


def run_generate(url: str, source: Path, out: Path, *more: str, key: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "OPENAI_API_KEY": key}
    words = command("generate", source, "--template", "{text}", "--id", "id", "--model", MODEL, "--endpoint", url)
    return subprocess.run([*words, "--out", str(out), *more], capture_output=True, text=True, env=environment)


def test_a_run_over_a_server_that_fails_is_whole_and_verified_and_the_key_is_nowhere(
    tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    key = "sk-planted-0123456789"
    texts = ["!long", *(f"prompt {number}" for number in range(1, 120))]
    source = write_jsonl([{"id": n, "text": text} for n, text in enumerate(texts)])
    with llm_server(faults=0.1, seed=3, key=key) as server:
        denied = run_generate(server.url, source, tmp_path / "run", key="sk-other-9876543210")
        done = run_generate(server.url, source, tmp_path / "run", "--workers", "1", key=key)
    assert denied.returncode == 1, denied.stderr
    assert "denies access" in denied.stderr
    assert "Check the key in OPENAI_API_KEY" in denied.stderr
    assert done.returncode == 0, done.stderr
    run = Run(str(tmp_path / "run"))
    rows = {row["id"]: row for row in run.table().to_pylist()}
    assert {i: rows[i]["output"] for i in range(1, 120)} == {i: answer_to(texts[i]) for i in range(1, 120)}
    assert rows[0]["output"] is None
    assert "maximum context length" in json.dumps(list(run.errors()))
    assert run.verify().verified
    said = denied.stdout + denied.stderr + done.stdout + done.stderr
    said += "".join(f.read_bytes().decode("latin-1") for f in (tmp_path / "run").rglob("*") if f.is_file())
    assert "0123456789" not in said
    assert "9876543210" not in said
