"""What the documentation shows is what happens."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["cli.md", "api.md"])
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    from docs.generate import PAGES

    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run python -m docs.generate"


def test_the_task_in_the_guide_runs(
    tmp_path: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "docs/tasks.md").read_text(), re.DOTALL)
    task, use = [text for language, text in blocks if language == "python"]
    write_jsonl([{"reviewText": "one two"}, {"reviewText": "three"}], "reviews.jsonl")
    (tmp_path / "lengths.py").write_text(task)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    scope: dict[str, object] = {}
    exec(compile(use, "tasks.md", "exec"), scope)
    run = scope["run"]
    assert run.table().column("words").to_pylist() == [2, 1]  # type: ignore[attr-defined]
    sys.modules.pop("lengths", None)


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
