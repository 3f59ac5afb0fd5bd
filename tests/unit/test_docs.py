"""What the documentation shows is what happens."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.run import start
from shardmill.spec import make_spec, read_spec
from shardmill.testing import InProcessEngine

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["cli.md", "api.md"])
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    from docs.generate import PAGES

    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run python -m docs.generate"


def test_the_task_in_the_guide_runs(
    tmp_path: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "docs/tasks.md").read_text(), re.DOTALL)
    task, roots, use = [text for language, text in blocks if language == "python"]
    write_jsonl([{"reviewText": "one two"}, {"reviewText": "three"}], "reviews.jsonl")
    (tmp_path / "lengths.py").write_text(task)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    scope: dict[str, object] = {}
    exec(compile(use, "tasks.md", "exec"), scope)
    run = scope["run"]
    assert run.table().column("words").to_pylist() == [2, 1]  # type: ignore[attr-defined]
    sys.modules.pop("lengths", None)
    (tmp_path / "roots.py").write_text(roots)
    (tmp_path / "roots.toml").write_text(next(text for kind, text in blocks if kind == "toml" and "items" in text))
    spec = make_spec(**read_spec(tmp_path / "roots.toml"))
    found = start(spec, "runs/roots", engine=InProcessEngine()).table().column("root").to_pylist()
    assert found == pytest.approx([0.0, 1.0, 2**0.5])
    sys.modules.pop("roots", None)


def test_the_examples_of_augmentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/augmentation.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, "augmentation.md", "exec"), {})
    assert len(blocks) == 6


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")), ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


PAGES = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")) + sorted(ROOT.glob("examples/**/*.md"))
# What a reader stumbles over, and how it reads now.
ODD = {
    r"\breckon": "estimate",
    r"held against|holds? against": "compared with",
    r"gone through": "processed",
    r"\ba (worker|vector|row|chunk|shard|file) an? (GPU|item|node|shard|attempt|chunk|file|line|text)\b": "one … per …",
    r"\ba row for each\b": "one row per",
    r"\bso many\b": "N",
    r"\bhears? of\b": "is told",
    r"the seed's": "nothing: it is private history",
}


def prose(page: Path) -> list[str]:
    """Lines of a page that are read as text: no code, no tables."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if not line.lstrip().startswith("|")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_of_prose_fit_a_window(page: Path) -> None:
    without_links = [re.sub(r"\]\([^)]*\)", "]", line) for line in prose(page)]
    assert [line for line in without_links if len(line) > 120] == []


def test_words_are_plain() -> None:
    texts = {page: "\n".join(prose(page)) for page in PAGES if page.name != "CHANGELOG.md"}
    texts |= {path: path.read_text() for path in sorted((ROOT / "src").rglob("*.py"))}
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}: write {better}"
        for path, text in texts.items()
        for odd, better in ODD.items()
        for match in re.finditer(odd, text, re.IGNORECASE)
    ]
    assert found == []
