"""`shardmill summarize` says in a line or two what is wrong with a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli import Cli, assert_told, write_spec

REFUSALS = {
    ("--text", "text"): ("No --out was given",),
    ("--text", "text", "--group-by", "topic"): ("No --out was given",),
    ("--text", "text", "--out", "run", "--method", "guess"): ("method", "extractive"),
    ("--text", "text", "--out", "run", "--max-tokens", "9"): ("max_tokens is for a model that writes",),
    ("--text", "text", "--out", "run", "--method", "generative"): ("No model was given",),
    ("--text", "text", "--out", "run", "--group-by", "nothing"): ("nothing",),
    ("--text", "text", "--out", "run", "--group-by", "id", "--detach"): ("--detach",),
    ("--text", "text", "--out", "run", "--group-by", "id", "--to", "postgresql:///x"): ("--table",),
    ("--text", "text", "--out", "run", "--reference", "nothing"): ("nothing",),
}


@pytest.mark.parametrize(("words", "said"), REFUSALS.items(), ids=lambda each: " ".join(each)[-30:])
def test_a_request_that_cannot_be_met_is_refused(
    shardmill: Cli,
    write_jsonl: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    said: tuple[str, ...],
) -> None:
    source = write_jsonl([{"id": 1, "text": "One. Two."}])
    monkeypatch.chdir(tmp_path)
    assert_told(shardmill("summarize", source, *words), 2, *said)
    assert not (tmp_path / "run").exists()


def test_a_spec_of_another_task_is_refused(shardmill: Cli, write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    spec = write_spec(tmp_path, write_jsonl([{"id": 1, "text": "One."}]))
    assert_told(shardmill("summarize", "--spec", spec, "--out", tmp_path / "run"), 2, "not summarize")
