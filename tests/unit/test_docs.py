"""What the documentation shows is what happens."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.plan.spec import make_spec, read_spec
from shardmill.run import start
from shardmill.testing import InProcessEngine

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["agents.md", "cli.md", "api.md", "install.md", "tests.md"])
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    from tools.generate import PAGES

    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run python -m tools.generate"


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


FOLDERS = ("docs", "examples", "campaigns", "deploy")
PAGES = sorted(ROOT.glob("*.md")) + [page for name in FOLDERS for page in sorted(ROOT.glob(f"{name}/**/*.md"))]
DESIGN = ROOT / "docs/design"
LIVING = sorted(page for page in DESIGN.glob("*.md") if page.name != "README.md")


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if "://" in target:
            continue
        place, _, anchor = target.partition("#")
        there = page.parent / place if place else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_a_test_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"tests/[\w/.-]*\w", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", LIVING, ids=name_page)
def test_a_design_page_is_short_and_ends_with_its_history(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert len(lines) <= 150
    assert "](history/0" in lines[-1]


def test_every_design_page_is_named_by_the_index_and_by_a_module() -> None:
    named: set[str] = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        named |= {name for line in re.findall(r"^Design: (.+)$", docstring, re.MULTILINE) for name in line.split(", ")}
    living = {name_page(page) for page in LIVING}
    assert named == living
    index = re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", (DESIGN / "README.md").read_text(), re.MULTILINE)
    assert sorted(index) == [page.name for page in LIVING]


def test_the_history_lists_all_its_pages() -> None:
    history = DESIGN / "history"
    listed = re.findall(r"\]\((\d{4}-[^)]+)\)", (history / "README.md").read_text())
    assert listed == sorted(page.name for page in history.glob("0*.md"))


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

# Of the pages alone; the history keeps its words.
ODD_ON_PAGES = {
    r"\bf(e|a)lls? away\b": "removed",
    r"\bstate of now\b": "current state",
    r"\blearnt\b": "trained, learned",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bin mid-run\b": "during a run",
    r"\bA script that runs\b": "a complete script",
    r"\bare those of every (task|run)\b": "work as for every …",
    r"\buntried\b": "untested",
}
KEPT_PLAIN = {page for page in PAGES if "history" not in page.parts and page.name not in ("api.md", "cli.md")}


def prose(page: Path) -> list[str]:
    """Lines of a page that are read as text: no code, no tables."""
    return [line for line in without_code(page).splitlines() if not line.lstrip().startswith("|")]


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_lines_of_prose_fit_a_window(page: Path) -> None:
    without_links = [re.sub(r"\]\([^)]*\)", "]", line) for line in prose(page)]
    assert [line for line in without_links if len(line) > 120] == []


def test_words_are_plain() -> None:
    texts = {page: "\n".join(prose(page)) for page in PAGES if page.name != "CHANGELOG.md"}
    texts |= {path: path.read_text() for path in sorted((ROOT / "src").rglob("*.py"))}
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}: write {better}"
        for path, text in texts.items()
        for odd, better in (ODD | (ODD_ON_PAGES if path in KEPT_PLAIN else {})).items()
        for match in re.finditer(odd, text, re.IGNORECASE)
    ]
    assert found == []
