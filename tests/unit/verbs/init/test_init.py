"""`shardmill init`: a spec with comments, from flags or answers, never over a file that exists."""

from __future__ import annotations

import io
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.plan.spec import make_spec, read_spec
from tests.support.cli import Cli, assert_told, write_spec


@pytest.fixture
def source(write_jsonl: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    write_jsonl([{"id": 1, "title": "one", "body": "one two"}], "docs.jsonl")
    monkeypatch.chdir(tmp_path)
    return "docs.jsonl"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_flags_become_keys(shardmill: Cli, source: str) -> None:
    words = ["--text", "title,body", "--id", "id", "--keep", "title"]
    said = shardmill("init", source, *words, "--task", "summarize", "--model", 'a "model"')
    assert said.status == 0, said
    assert "job.toml is written. Next: shardmill run --spec job.toml --out runs/job" in said.err
    spec = make_spec(**read_spec(Path("job.toml")))
    assert (spec.work.source, spec.work.text, spec.work.id, spec.work.keep) == (
        ("docs.jsonl",),
        "title,body",
        ("id",),
        ("title",),
    )
    assert (spec.work.task, spec.work.params) == ("summarize", {"model": 'a "model"'})


def test_a_key_in_a_comment_can_be_used_as_it_is(shardmill: Cli, source: str) -> None:
    assert shardmill("init", source, "--text", "body").status == 0
    page = Path("job.toml").read_text()
    commented = re.findall(r"^# ([a-z_]+ = .+)$", page, re.MULTILINE)
    assert {each.partition(" ")[0] for each in commented} >= {"id", "keep", "where", "model", "engine", "workers"}
    for line in commented:
        said = tomllib.loads(page.replace(f"# {line}\n", f"{line}\n"))
        if not line.startswith("query"):
            make_spec(said["work"], said["execution"])
    assert max(map(len, page.splitlines())) <= 100


def test_questions_ask_for_what_was_not_given(shardmill: Cli, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("docs.jsonl\n\nbody\nid\n"))
    said = shardmill("init")
    assert said.status == 0, said
    assert "Column with the text, one of id, title, body" in said.err
    spec = make_spec(**read_spec(Path("job.toml")))
    assert (spec.work.task, spec.work.source, spec.work.text, spec.work.id) == (
        "embed",
        ("docs.jsonl",),
        "body",
        ("id",),
    )
    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    said = shardmill("init", source, "--text", "body", "--task", "embed", "--file", "other.toml")
    assert said.status == 0, said
    assert "id" not in tomllib.loads(Path("other.toml").read_text())["work"]


def test_a_folder_with_a_spec_is_refused(shardmill: Cli, source: str, tmp_path: Path) -> None:
    before = write_spec(tmp_path, "docs.jsonl").read_text()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    (tmp_path / "broken.toml").write_text("[work")
    assert_told(shardmill("init", source, "--text", "body"), 2, "spec.toml exists", "shardmill run --spec spec.toml")
    assert (tmp_path / "spec.toml").read_text() == before
    assert not (tmp_path / "job.toml").exists()
    assert_told(shardmill("init", source, "--text", "body", "--file", "spec.toml"), 2, "Nothing was written")
    assert (tmp_path / "spec.toml").read_text() == before
    assert shardmill("init", source, "--text", "body", "--file", "new/second.toml").status == 0
    assert (tmp_path / "new" / "second.toml").exists()


def test_a_folder_with_other_toml_files_is_none_with_a_spec(shardmill: Cli, source: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    (tmp_path / "cluster.toml").write_text("work = 'here'\n")
    assert shardmill("init", source, "--text", "body").status == 0


REFUSALS = {
    (): "No SOURCE was given",
    ("docs.jsonl",): "No --text was given",
    ("nowhere.jsonl", "--text", "body"): "nowhere.jsonl",
    ("docs.jsonl", "--text", "boddy"): "no column 'boddy'",
    ("docs.jsonl", "--text", "body", "--task", "summarise"): "Did you mean 'summarize'",
    ("docs.jsonl", "--text", "body", "--task", "classify"): "No --model was given",
    ("docs.jsonl", "--text", "body", "--file", "docs.jsonl/x.toml"): "cannot be written",
}


@pytest.mark.parametrize("words", REFUSALS, ids=" ".join)
def test_what_would_not_run_is_refused(shardmill: Cli, source: str, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert_told(shardmill("init", *words), 2, REFUSALS[words])
    assert not list(tmp_path.glob("**/*.toml"))
