"""`shardmill generate --endpoint` in real worker processes, over a server that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.run import Run
from tests.support.cli import Cli, assert_told
from tests.support.llm_server import MODEL, answer_to, llm_server

pytestmark = pytest.mark.services


def test_a_run_over_a_server_that_fails_is_whole_and_verified_and_the_key_is_nowhere(
    tmp_path: Path, write_jsonl: Callable[..., Path], shardmill: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try has a wrong key: that ends the run, and is the fault of no row."""
    texts = ["!long", *(f"prompt {number}" for number in range(1, 50))]
    source = write_jsonl([{"id": n, "text": text} for n, text in enumerate(texts)])
    run = tmp_path / "run"
    with llm_server(faults=0.1, seed=3, key="sk-planted-0123456789") as server:
        words = ("--template", "{text}", "--id", "id", "--model", MODEL, "--endpoint", server.url, "--max-errors", "5%")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-other-9876543210")
        denied = shardmill("generate", source, *words, "--out", run)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")
        done = shardmill("generate", source, *words, "--out", run)
    assert denied.status == 1
    assert "denies access (401)" in denied.err
    assert "Check the key in OPENAI_API_KEY." in denied.err
    assert done.status == 0, done.err
    result = Run(run)
    rows = {row["id"]: row for row in result.table().to_pylist()}
    assert {i: rows[i]["output"] for i in range(1, 50)} == {i: answer_to(texts[i]) for i in range(1, 50)}
    assert rows[0]["output"] is None
    assert ["maximum context length" in json.dumps(failed) for failed in result.errors()] == [True]
    assert result.verify().verified
    assert result.cost().to_json()["tokens_out"] == 2 * 49
    said = "".join([*map(str, (*denied, *done)), *(f.read_text("latin-1") for f in run.rglob("*") if f.is_file())])
    assert "0123456789" not in said
    assert "9876543210" not in said


@pytest.mark.parametrize("option", [("--beams", 2), ("--top-k", 5)])
def test_what_a_server_cannot_do_is_refused(
    option: tuple[str, int], tmp_path: Path, write_jsonl: Callable[..., Path], shardmill: Cli
) -> None:
    source = write_jsonl([{"text": "a"}])
    words = ("--template", "{text}", "--model", MODEL, "--endpoint", "http://127.0.0.1:1/v1", *option)
    assert_told(shardmill("generate", source, *words, "--out", tmp_path / "run"), 2, option[0])
